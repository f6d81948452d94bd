/* The two steps of LazyAdam on the rows of a table that a batch reads; lazy_adam.py defines them.
 *
 * A row may appear more than once in a batch. All its places belong to the same part, and each part
 * to one thread, so two threads never write to the same row.
 */

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>

#define AHEAD 32 /* rows to prefetch ahead: they lie anywhere in memory */
#define SMALL (1 << 15) /* values; waking threads costs as much as moving some thousand */

/* The function that runs work in torch's own threads */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    const int64_t *rows;
    int64_t count, width;
    float *weight;       /* (table rows, width) */
    float *moments;      /* (table rows, 2, width): averages of the gradient and of its square */
    int32_t *last;       /* (table rows): the step up to which a row has moved */
    const double *reach; /* (steps, 2): by such a step, the reach and the drag of a row */
    float *gradient;     /* (count, width) */
    int32_t *first;      /* (table rows): the first place of a row in the batch; arbitrary before */
    int32_t now;
    double log_beta1, log_beta2;
    float beta1, beta2, step, eps;
    uint32_t parts;
    atomic_uint next;
    void (*one)(void *, uint32_t);
} Batch;

static inline uint32_t part_of(const Batch *batch, int64_t row) {
    const uint64_t hash = (uint64_t)row * 0x9E3779B97F4A7C15u;
    return batch->parts == 1 ? 0 : (uint32_t)(hash >> 32) % batch->parts;
}

static inline void prefetch(const Batch *batch, int64_t place) {
    if (place < batch->count) {
        int64_t row = batch->rows[place];
        __builtin_prefetch(&batch->last[row], 1);
        __builtin_prefetch(&batch->weight[row * batch->width], 1);
        __builtin_prefetch(&batch->moments[row * 2 * batch->width], 1);
    }
}

/* Move the rows of a part as if they had had gradients of 0 since their last step. */
static void catch_up(void *given, uint32_t part) {
    Batch *batch = given;
    int64_t width = batch->width;
    for (int64_t place = 0; place < batch->count; place++) {
        int64_t row = batch->rows[place];
        prefetch(batch, place + AHEAD);
        if (part_of(batch, row) != part) continue;
        int32_t last = batch->last[row];
        if (last == batch->now) continue;
        double reach = batch->reach[2 * last];
        float distance = (float)reach;
        float eps = reach > 0 ? (float)(batch->reach[2 * last + 1] / reach) : 1;
        float decay1 = expf((float)(batch->log_beta1 * (batch->now - last)));
        float decay2 = expf((float)(batch->log_beta2 * (batch->now - last)));
        float *weight = batch->weight + row * width;
        float *first = batch->moments + row * 2 * width;
        float *second = first + width;
        for (int64_t column = 0; column < width; column++) {
            weight[column] -= distance * first[column] / (sqrtf(second[column]) + eps);
            first[column] *= decay1;
            second[column] *= decay2;
        }
        batch->last[row] = batch->now;
    }
}

/* Add the gradients of a row that appears more than once to the first of them. */
static void add_up(Batch *batch, uint32_t part) {
    int64_t width = batch->width;
    for (int64_t place = 0; place < batch->count; place++) {
        int64_t row = batch->rows[place];
        if (part_of(batch, row) != part) continue;
        int64_t first = batch->first[row];
        if (first >= 0 && first < place && batch->rows[first] == row) {
            float *sum = batch->gradient + first * width;
            float *own = batch->gradient + place * width;
            for (int64_t column = 0; column < width; column++) sum[column] += own[column];
        } else {
            batch->first[row] = (int32_t)place;
        }
    }
}

/* Do Adam's step for the rows of a part. */
static void move(void *given, uint32_t part) {
    Batch *batch = given;
    int64_t width = batch->width;
    float beta1 = batch->beta1, beta2 = batch->beta2;
    add_up(batch, part);
    for (int64_t place = 0; place < batch->count; place++) {
        int64_t row = batch->rows[place];
        prefetch(batch, place + AHEAD);
        if (part_of(batch, row) != part || batch->first[row] != place) continue;
        float *weight = batch->weight + row * width;
        float *first = batch->moments + row * 2 * width;
        float *second = first + width;
        const float *gradient = batch->gradient + place * width;
        for (int64_t column = 0; column < width; column++) {
            float slope = gradient[column];
            first[column] = beta1 * first[column] + (1 - beta1) * slope;
            second[column] = beta2 * second[column] + (1 - beta2) * slope * slope;
            weight[column] -= batch->step * first[column] / (sqrtf(second[column]) + batch->eps);
        }
        batch->last[row] = batch->now;
    }
}

/* Take parts that no other thread has taken, until none is left. */
static void work(void *given) {
    Batch *batch = given;
    uint32_t part;
    while ((part = atomic_fetch_add(&batch->next, 1)) < batch->parts) batch->one(batch, part);
}

static void run(Batch *batch, void (*one)(void *, uint32_t), int threads, Parallel parallel) {
    int several = parallel && threads > 1 && batch->count * batch->width > SMALL;
    batch->parts = several ? (uint32_t)threads : 1;
    batch->one = one;
    atomic_init(&batch->next, 0);
    if (several)
        parallel(work, batch, (unsigned)threads, 0);
    else
        work(batch);
}

void torchleap_adam_catch_up(const int64_t *rows, int64_t count, int64_t width, float *weight,
                             float *moments, int32_t *last, const double *reach, int32_t now,
                             double beta1, double beta2, int threads, Parallel parallel) {
    Batch batch = {
        .rows = rows,
        .count = count,
        .width = width,
        .weight = weight,
        .moments = moments,
        .last = last,
        .reach = reach,
        .now = now,
        .log_beta1 = log(beta1),
        .log_beta2 = log(beta2),
    };
    run(&batch, catch_up, threads, parallel);
}

void torchleap_adam_move(const int64_t *rows, int64_t count, int64_t width, float *gradient,
                         float *weight, float *moments, int32_t *last, int32_t *first, int32_t now,
                         double beta1, double beta2, double step, double eps, int threads,
                         Parallel parallel) {
    Batch batch = {
        .rows = rows,
        .count = count,
        .width = width,
        .weight = weight,
        .moments = moments,
        .last = last,
        .gradient = gradient,
        .first = first,
        .now = now,
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .step = (float)step,
        .eps = (float)eps,
    };
    run(&batch, move, threads, parallel);
}
