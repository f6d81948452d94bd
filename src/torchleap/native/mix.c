/* The mixing step for CPUs: permute each gate's rows, mix, measure; and its gradient.
 * docs/performance.md explains its structure.
 *
 * Columns are cut into pieces (up to 256 bytes of one gate's columns), and neighbouring pieces are
 * bundled into panels that fit the second-level cache together with the permutations of their
 * gates. A thread packs a panel, draws the permutations and works through the panel in tiles of
 * rows that fit the first-level cache. No sum depends on the bundling, so none depends on the
 * number of threads.
 *
 * Plain C11 without any header of Python or torch; pointers and sizes come in through ctypes.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#include <unistd.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { INTERFACE = 4 };          /* library.py refuses a library of another version */
enum { LINE = 64 };              /* bytes of a cache line */
enum { PIECE = 256 };            /* bytes of a row in a piece, at most */
enum { PANEL_ROW = 1024 };       /* bytes of a row in a panel, at most */
enum { CACHE_PERCENT = 85 };     /* of the second-level cache, for a panel and its permutations */
enum { TILE = 32 };              /* rows of a tile */
enum { AHEAD = 8 };              /* rows to prefetch ahead */
enum { PAST_CACHES = 16 << 20 }; /* bytes; larger results are written past the caches, as the next
                                    layer would not find them there */
enum { HUGE_PAGE = 2 << 20 };    /* bytes */

typedef struct {
    int64_t gate, local;  /* its gate, and the gate's number in the panel */
    int64_t first, width; /* its columns; the width is a power of two */
    int64_t part;         /* its Part if its gate lies in several panels, else -1 */
} Piece;

typedef struct {
    int64_t first, width; /* its columns */
    int64_t piece, end;   /* its pieces */
    int64_t gates;        /* the number of different gates */
} Panel;

typedef struct { /* the sums of a piece for its gate */
    int64_t gate;
    int64_t next;      /* the next part of its gate, else -1 */
    int first;         /* whether it is the first part of its gate */
    void *square;      /* (rows) sums of squares */
    uint64_t *code;    /* (sample) */
    double *deviation; /* (sample) */
} Part;

typedef struct {
    /* given */
    const void *x, *gate;
    const int64_t *column_gate;
    const uint64_t *streams; /* (1 + gates): one that all gates have in common, then each gate's */
    int64_t rows, columns, gates, x_stride, sample;
    int cyclic, threads;
    /* given to forward */
    void *output, *mean, *statistics; /* statistics: (4, gates) distance, square, common, spread */
    /* given to backward */
    const void *grad;
    int64_t grad_stride;
    void *grad_x, *grad_gate;
    /* planned */
    int64_t size, wide; /* bytes of an element, and of an element of a sum */
    Piece *pieces;
    Panel *panels;
    Part *parts;
    int64_t piece_count, panel_count, part_count, max_gates, max_width;
    int64_t *range;         /* (threads + 1): the first panel of each thread */
    int64_t *width_of;      /* (gates) */
    int64_t *panels_of;     /* (gates): the number of panels, then two more arrays of that size */
    double *piece_sum;      /* (pieces), for backward */
    uint32_t *common_order; /* (rows) */
    int64_t scratch_bytes;
    char *scratch;
    int past_caches;
    void (*each)(const void *work, void *scratch, int64_t panel, int64_t end);
    atomic_llong next_range;
} Work;

/* Prefetch the lines of some memory that will soon be read. */
#define PREFETCH(START, BYTES)                                 \
    for (int64_t at_ = 0; at_ < (int64_t)(BYTES); at_ += LINE) \
    __builtin_prefetch((const char *)(START) + at_)

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Permutations, as shuffle.py defines them */

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

static inline uint64_t scramble(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

void torchleap_streams(int64_t seed, const int64_t *steps, int64_t gates, int64_t first_gate,
                       uint64_t *streams) {
    const uint64_t start = (uint64_t)seed;
    streams[0] = scramble(scramble(start + GOLDEN * (uint64_t)(steps[0] + 1)));
    for (int64_t gate = 0; gate < gates; gate++) {
        const uint64_t of_step = scramble(start + GOLDEN * (uint64_t)(steps[gate] + 1));
        streams[1 + gate] = scramble(of_step + GOLDEN * (uint64_t)(first_gate + gate + 1));
    }
}

/* The shuffle of Fisher and Yates from the inside out; each 64-bit hash decides two rows. */
static void draw_uniform(uint32_t *restrict order, uint64_t stream, int64_t rows) {
    enum { BLOCK = 256 };
    uint32_t rng[2 * BLOCK];
    for (int64_t start = 0; start < rows; start += 2 * BLOCK) {
        for (uint64_t i = 0; i < BLOCK; i++) {
            const uint64_t hash = scramble(stream + GOLDEN * ((uint64_t)start / 2 + i));
            rng[2 * i] = (uint32_t)hash;
            rng[2 * i + 1] = (uint32_t)(hash >> 32);
        }
        const int64_t end = smaller(start + 2 * BLOCK, rows);
        for (int64_t row = start; row < end; row++) {
            const uint64_t other = (rng[row - start] * (uint64_t)(row + 1)) >> 32; /* 0 to row */
            order[row] = order[other];
            order[other] = (uint32_t)row;
        }
    }
}

/* Draw the permutation of one gate. */
static void draw_order(const Work *work, int64_t gate, uint32_t *restrict order) {
    const int64_t rows = work->rows;
    if (!work->cyclic) {
        draw_uniform(order, work->streams[1 + gate], rows);
        return;
    }
    const uint32_t *restrict common = work->common_order;
    const uint64_t random = work->streams[1 + gate] >> 32;
    const int64_t shift = rows < 2 ? 0 : 1 + (int64_t)((random * (uint64_t)(rows - 1)) >> 32);
    for (int64_t i = 0; i < rows - shift; i++) order[common[i]] = common[i + shift];
    for (int64_t i = rows - shift; i < rows; i++) order[common[i]] = common[i + shift - rows];
}

/* Find the most common code of the first half of a sample. Write the fraction of rows of the second
 * half at that code, and the deviation of its other rows. */
static void most_common(const uint64_t *code, const double *deviation, int64_t sample,
                        double *fraction, double *spread) {
    enum { SLOTS = 512 }; /* mix/native.py passes at most 256 rows */
    const int64_t half = larger(1, sample / 2);
    uint64_t seen[SLOTS], best = 0;
    uint16_t count[SLOTS] = {0};
    int most = 0;
    for (int64_t i = 0; i < half; i++) {
        uint64_t slot = scramble(code[i]) % SLOTS;
        while (count[slot] && seen[slot] != code[i]) slot = (slot + 1) % SLOTS;
        seen[slot] = code[i];
        count[slot]++;
        const int smaller_tie = count[slot] == most && (int64_t)code[i] < (int64_t)best;
        if (count[slot] > most || smaller_tie) {
            most = count[slot];
            best = code[i];
        }
    }
    int64_t differ = 0;
    double sum = 0;
    for (int64_t i = half; i < sample; i++)
        if (code[i] != best) {
            differ++;
            sum += deviation[i];
        }
    const double counted = (double)(sample - half);
    *fraction = 1 - (double)differ / counted;
    *spread = sum / counted;
}

/* Copy a row of a panel line by line, which may touch up to a line behind it, unless `exact`. */
static inline void copy_row(char *restrict to, const char *restrict from, int64_t bytes,
                            int exact) {
    if (exact)
        memcpy(to, from, (size_t)bytes);
    else
        for (int64_t at = 0; at < bytes; at += LINE) memcpy(to + at, from + at, LINE);
}

/* Write a row of a panel in complete lines past the caches. The rest of the last line waits in
 * `carry` for the same row of the next panel. `from` has a line of room in front; `before` is the
 * number of bytes of this row that this thread has written already. */
static inline void write_past_caches(char *to, char *from, int64_t bytes, char *carry,
                                     int64_t before, int last) {
#if defined(__SSE2__)
    const int64_t offset = (int64_t)((uintptr_t)to % LINE);
    int64_t at = -offset;
    if (offset > before) { /* a line that another thread has begun */
        at = smaller(LINE - offset, bytes);
        memcpy(to, from, (size_t)at);
    } else {
        memcpy(from - LINE, carry, LINE);
    }
    for (; at + LINE <= bytes; at += LINE) {
#if defined(__AVX512F__)
        _mm512_stream_si512((__m512i *)(to + at), _mm512_loadu_si512(from + at));
#else
        for (int i = 0; i < LINE; i += 16)
            _mm_stream_si128((__m128i *)(to + at + i),
                             _mm_loadu_si128((const __m128i *)(from + at + i)));
#endif
    }
    if (last)
        memcpy(to + at, from + at, (size_t)(bytes - at));
    else
        memcpy(carry, from + bytes - LINE, LINE);
#else
    (void)carry;
    (void)before;
    (void)last;
    memcpy(to, from, (size_t)bytes);
#endif
}

static void end_of_writes(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* Memory for a large result, in huge pages where the system has them: there are fewer page faults,
 * and fewer misses in the page tables. */
void *torchleap_allocate(int64_t bytes) {
    const int64_t size = round_up(bytes, HUGE_PAGE);
    void *memory = NULL;
    if (posix_memalign(&memory, HUGE_PAGE, (size_t)size)) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    (void)madvise(memory, (size_t)size, MADV_HUGEPAGE);
#endif
    return memory;
}

void torchleap_free(void *memory) { free(memory); }

/* The size of a panel and its permutations */
static int64_t panel_bytes(void) {
    int64_t cache = 1 << 20;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (found > 0) cache = found;
#endif
    return larger(96 << 10, smaller(cache, 2 << 20) * CACHE_PERCENT / 100);
}

/* The memory that one thread works in */
typedef struct {
    char *packed, *grad, *result, *carry;
    uint32_t *orders;                   /* (gates of the panel, rows) */
    int64_t *order_gate;                /* (gates of the panel): whose permutations they are */
    char *row_square;                   /* (gates of the panel, tile) */
    char *tile_sum, *centre, *fraction; /* (columns) */
    double *total;                      /* (columns) */
    double *distance, *square;          /* (gates of the panel) */
    double *deviation;                  /* (gates of the panel, sample) */
    uint64_t *code;                     /* (gates of the panel, sample) */
} Scratch;

/* The distance between packed rows, in elements: complete lines */
static int64_t pitch_of(int64_t width, int64_t size) {
    return round_up(width * size, LINE) / size;
}

/* Lay the scratch memory out from `base`; return its size. */
static int64_t lay_out(Scratch *s, char *base, const Work *work) {
    const int64_t width = work->max_width, gates = work->max_gates;
    const int64_t rows = work->rows, sample = work->sample;
    const int64_t row_bytes = pitch_of(width, work->size) * work->size;
    int64_t at = 0;
#define PLACE(NAME, TYPE, BYTES)       \
    s->NAME = (TYPE *)(base + at); \
    at += round_up((BYTES), LINE) + LINE
    PLACE(packed, char, rows * row_bytes);
    PLACE(orders, uint32_t, gates * rows * 4);
    PLACE(order_gate, int64_t, gates * 8);
    PLACE(result, char, TILE * (row_bytes + LINE) + LINE);
    PLACE(grad, char, TILE * row_bytes);
    PLACE(carry, char, work->past_caches ? rows * LINE : 0);
    PLACE(row_square, char, gates * TILE * work->wide);
    PLACE(tile_sum, char, row_bytes / work->size * work->wide);
    PLACE(centre, char, row_bytes / work->size * work->wide);
    PLACE(fraction, char, row_bytes / work->size * work->wide);
    PLACE(total, double, width * 8);
    PLACE(distance, double, gates * 8);
    PLACE(square, double, gates * 8);
    PLACE(code, uint64_t, gates * sample * 8);
    PLACE(deviation, double, gates * sample * 8);
#undef PLACE
    return at;
}

/* Draw the permutations of a panel; the last gate of a panel is often the first of the next. */
static void draw_orders(const Work *work, const Panel *panel, Scratch *s) {
    for (int64_t i = panel->piece; i < panel->end; i++) {
        const Piece *piece = &work->pieces[i];
        if (s->order_gate[piece->local] == piece->gate) continue;
        draw_order(work, piece->gate, s->orders + piece->local * work->rows);
        s->order_gate[piece->local] = piece->gate;
    }
}

/* The functions that depend on the element's type */
#define ELEMENT float
#define WIDE float
#define ROOT sqrtf
#define NAME(f) f##_float32
#define READ(v) (v)
#define WRITE(v) (v)
#define BITS(v) bits_of_float(v)
static inline int64_t bits_of_float(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    return (uint32_t)bits << 1 ? bits : 0; /* -0.0 is 0.0 */
}
#include "mix_typed.h"

#define ELEMENT double
#define WIDE double
#define ROOT sqrt
#define NAME(f) f##_float64
#define READ(v) (v)
#define WRITE(v) (v)
#define BITS(v) bits_of_double(v)
static inline int64_t bits_of_double(double value) {
    int64_t bits;
    memcpy(&bits, &value, 8);
    return (uint64_t)bits << 1 ? bits : 0;
}
#include "mix_typed.h"

#define ELEMENT uint16_t /* bfloat16: the upper half of a float32 */
#define WIDE float
#define ROOT sqrtf
#define NAME(f) f##_bfloat16
#define READ(v) read_bfloat16(v)
#define WRITE(v) write_bfloat16(v)
#define BITS(v) bits_of_float(v)
static inline float read_bfloat16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline uint16_t write_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    /* to nearest, ties to even */
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(value != value ? 0x7FC0 : rounded);
}
#include "mix_typed.h"

/* Planning */

/* Cut runs of columns of one gate into pieces. */
static void cut(Work *work) {
    int64_t longest = PIECE / work->size;
    const int64_t room = panel_bytes() / work->rows;
    while (longest * work->size > LINE && longest * work->size > room) longest /= 2; /* many rows */
    for (int64_t column = 0, end; column < work->columns; column = end) {
        const int64_t gate = work->column_gate[column];
        end = column + 1;
        while (end < work->columns && work->column_gate[end] == gate) end++;
        work->width_of[gate] += end - column;
        for (int64_t at = column, width = longest; at < end; at += width) {
            while (width > end - at) width /= 2;
            work->pieces[work->piece_count++] =
                (Piece){.gate = gate, .first = at, .width = width, .part = -1};
        }
    }
}

/* Bundle the pieces into panels; each thread gets a run of them. */
static void bundle(Work *work) {
    const int64_t room = smaller(PANEL_ROW, panel_bytes() / work->rows);
    int64_t *last_panel = work->panels_of + work->gates; /* of each gate, counted from 1 */
    int64_t *local = last_panel + work->gates;           /* the number of each gate in its panel */
    const int64_t total = work->columns * work->size + 4 * work->piece_count;
    int64_t used = 0, done = 0;
    int thread = 0;
    Panel *panel = NULL;
    for (int64_t i = 0; i < work->piece_count; i++) {
        Piece *piece = &work->pieces[i];
        const int64_t bytes = piece->width * work->size;
        const int known = panel && last_panel[piece->gate] == work->panel_count;
        const int turn = thread < work->threads && done >= total * thread / work->threads;
        if (turn || used + bytes + (known ? 0 : 4) > room) {
            if (turn) work->range[thread++] = work->panel_count;
            panel = &work->panels[work->panel_count++];
            *panel = (Panel){.first = piece->first, .piece = i};
            used = 0;
        }
        if (last_panel[piece->gate] != work->panel_count) {
            last_panel[piece->gate] = work->panel_count;
            local[piece->gate] = panel->gates++;
            work->panels_of[piece->gate]++;
            used += 4;
        }
        piece->local = local[piece->gate];
        panel->end = i + 1;
        panel->width += piece->width;
        used += bytes;
        done += bytes + 4;
        work->max_width = larger(work->max_width, panel->width);
        work->max_gates = larger(work->max_gates, panel->gates);
    }
    while (thread <= work->threads) work->range[thread++] = work->panel_count;
}

/* Give memory to the pieces of gates that lie in several panels; return 1 if there is none. */
static int plan_parts(Work *work) {
    int64_t *last_part = work->panels_of + work->gates; /* of each gate, counted from 1 */
    const int64_t squares = round_up(work->rows * work->wide, 8);
    memset(last_part, 0, (size_t)work->gates * 8);
    for (int64_t i = 0; i < work->piece_count; i++) {
        const int64_t gate = work->pieces[i].gate;
        if (work->panels_of[gate] < 2) continue;
        char *memory = malloc((size_t)(squares + work->sample * 16));
        if (!memory) return 1;
        work->parts[work->part_count] = (Part){
            .gate = gate,
            .next = -1,
            .first = !last_part[gate],
            .square = memory,
            .code = (uint64_t *)(memory + squares),
            .deviation = (double *)(memory + squares) + work->sample,
        };
        if (last_part[gate]) work->parts[last_part[gate] - 1].next = work->part_count;
        work->pieces[i].part = work->part_count++;
        last_part[gate] = work->part_count;
    }
    return 0;
}

/* Return 0, 1 if there is no memory, or 2 if the input is empty or a column has no gate. */
static int plan(Work *work) {
    if (work->threads < 1) work->threads = 1;
    if (work->rows < 1 || work->columns < 1) return 2;
    for (int64_t column = 0; column < work->columns; column++)
        if (work->column_gate[column] < 0 || work->column_gate[column] >= work->gates) return 2;
    work->pieces = malloc((size_t)work->columns * sizeof(Piece));
    work->panels = malloc((size_t)work->columns * sizeof(Panel));
    work->parts = malloc((size_t)work->columns * sizeof(Part));
    work->range = malloc((size_t)(work->threads + 1) * 8);
    work->width_of = calloc((size_t)work->gates, 8);
    work->panels_of = calloc((size_t)work->gates * 3, 8);
    if (!work->pieces || !work->panels || !work->parts) return 1;
    if (!work->range || !work->width_of || !work->panels_of) return 1;
    cut(work);
    bundle(work);
    return work->grad ? 0 : plan_parts(work);
}

static void release(Work *work) {
    for (int64_t i = 0; i < work->part_count; i++) free(work->parts[i].square);
    free(work->pieces);
    free(work->panels);
    free(work->parts);
    free(work->range);
    free(work->width_of);
    free(work->panels_of);
    free(work->piece_sum);
    free(work->common_order);
    free(work->scratch);
}

/* Work through the runs of panels that no other thread has taken. */
static void run_ranges(void *argument) {
    Work *work = argument;
    int64_t thread;
    while ((thread = (int64_t)atomic_fetch_add(&work->next_range, 1)) < work->threads) {
        const int64_t first = work->range[thread], end = work->range[thread + 1];
        Scratch s;
        lay_out(&s, work->scratch + work->scratch_bytes * thread, work);
        for (int64_t i = 0; i < work->max_gates; i++) s.order_gate[i] = -1;
        if (first < end) work->each(work, &s, first, end);
    }
    if (work->past_caches) end_of_writes();
}

static void *run_in_thread(void *work) {
    run_ranges(work);
    return NULL;
}

/* The function that runs work in torch's own threads, where library.py has found it: two pools of
 * threads would compete for the cores. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

static void run_in_parallel(void (*run)(void *), void *(*run_in_thread)(void *), void *work,
                            int64_t threads, Parallel parallel) {
    if (parallel && threads > 1) {
        parallel(run, work, (unsigned)threads, 0);
        return;
    }
    pthread_t helpers[64];
    const int64_t most = smaller(64, threads - 1);
    int count = 0;
    while (count < most && !pthread_create(&helpers[count], NULL, run_in_thread, work)) count++;
    run(work); /* takes the ranges that no helper has taken */
    while (count > 0) pthread_join(helpers[--count], NULL);
}

static int run(Work *work, Parallel parallel) {
    Scratch unused;
    if (work->cyclic || !work->grad) { /* forward samples by it */
        work->common_order = malloc((size_t)work->rows * 4);
        if (!work->common_order) return 1;
        draw_uniform(work->common_order, work->streams[0], work->rows);
    }
    work->scratch_bytes = lay_out(&unused, NULL, work);
    work->scratch = malloc((size_t)(work->scratch_bytes * work->threads));
    if (!work->scratch) return 1;
    run_in_parallel(run_ranges, run_in_thread, work, work->threads, parallel);
    return 0;
}

/* Put fields that lie apart side by side: torch.cat takes many times as long for narrow ones. */

typedef struct {
    const char *const *blocks;
    const int64_t *strides, *bytes; /* of each block: from row to row, and of a row */
    int64_t count, rows, row_bytes;
    char *output;
    atomic_llong next_row;
} Join;

#define COPY_ROWS(BYTES)                        \
    for (int64_t row = start; row < end; row++) \
    memcpy(to + row * join->row_bytes, from + row * stride, (size_t)(BYTES))

/* Copy the tiles of rows that no other thread has taken. */
static void join_rows(void *argument) {
    Join *join = argument;
    int64_t start;
    while ((start = (int64_t)atomic_fetch_add(&join->next_row, TILE)) < join->rows) {
        const int64_t end = smaller(start + TILE, join->rows);
        char *to = join->output;
        for (int64_t i = 0; i < join->count; to += join->bytes[i++]) {
            const char *from = join->blocks[i];
            const int64_t stride = join->strides[i];
            switch (join->bytes[i]) {
                case 2: COPY_ROWS(2); break;
                case 4: COPY_ROWS(4); break;
                case 8: COPY_ROWS(8); break;
                case 16: COPY_ROWS(16); break;
                case 32: COPY_ROWS(32); break;
                case 64: COPY_ROWS(64); break;
                default: COPY_ROWS(join->bytes[i]);
            }
        }
    }
}

static void *join_in_thread(void *join) {
    join_rows(join);
    return NULL;
}

void torchleap_join(const void *const *blocks, const int64_t *strides, const int64_t *bytes,
                    int64_t count, int64_t rows, int64_t row_bytes, void *output, int threads,
                    Parallel parallel) {
    Join join = {
        .blocks = (const char *const *)blocks,
        .strides = strides,
        .bytes = bytes,
        .count = count,
        .rows = rows,
        .row_bytes = row_bytes,
        .output = output,
    };
    const int64_t tiles = (rows + TILE - 1) / TILE;
    run_in_parallel(join_rows, join_in_thread, &join, smaller(threads, tiles), parallel);
}

/* The functions of the interface.
 *
 * dtype: 0 float32, 1 float64, 2 bfloat16; `gate` and all results but `output` and `grad_x` are
 * float64 for 1, else float32. Each function returns 0, 1 if there is no memory, or 2 if the input
 * is empty or a column has no gate. */

enum { FLOAT64 = 1 };
static const int64_t SIZES[] = {4, 8, 2};

int torchleap_interface(void) { return INTERFACE; }

int torchleap_forward(int dtype, const void *x, int64_t rows, int64_t columns, int64_t x_stride,
                      const void *gate, int64_t gates, const int64_t *column_gate,
                      const uint64_t *streams, int cyclic, int64_t sample, void *output, void *mean,
                      void *statistics, int threads, Parallel parallel) {
    static void (*const each[])(const void *, void *, int64_t, int64_t) = {
        forward_float32, forward_float64, forward_bfloat16};
    static void (*const finish[])(const Work *) = {finish_float32, finish_float64, finish_bfloat16};
    Work work = {
        .x = x,
        .gate = gate,
        .column_gate = column_gate,
        .streams = streams,
        .rows = rows,
        .columns = columns,
        .gates = gates,
        .x_stride = x_stride,
        .sample = sample,
        .cyclic = cyclic,
        .threads = threads,
        .output = output,
        .mean = mean,
        .statistics = statistics,
        .size = SIZES[dtype],
        .wide = dtype == FLOAT64 ? 8 : 4,
        .each = each[dtype],
    };
    work.past_caches = rows * columns * work.size >= PAST_CACHES;
    int failed = plan(&work);
    if (!failed) failed = run(&work, parallel);
    if (!failed) finish[dtype](&work);
    release(&work);
    return failed;
}

/* Add up the sums of the pieces of each gate, in the order of the columns. */
static void write_grad_gate(const Work *work, int dtype, double *total) {
    for (int64_t i = 0; i < work->piece_count; i++)
        total[work->pieces[i].gate] += work->piece_sum[i];
    for (int64_t g = 0; g < work->gates; g++) {
        if (dtype == FLOAT64)
            ((double *)work->grad_gate)[g] = total[g];
        else
            ((float *)work->grad_gate)[g] = (float)total[g];
    }
}

/* grad_x or grad_gate is NULL if it is not wanted. */
int torchleap_backward(int dtype, const void *grad, int64_t grad_stride, const void *x,
                       int64_t rows, int64_t columns, int64_t x_stride, const void *gate,
                       int64_t gates, const int64_t *column_gate, const uint64_t *streams,
                       int cyclic, void *grad_x, void *grad_gate, int threads, Parallel parallel) {
    static void (*const each[])(const void *, void *, int64_t, int64_t) = {
        backward_float32, backward_float64, backward_bfloat16};
    Work work = {
        .x = x,
        .gate = gate,
        .column_gate = column_gate,
        .streams = streams,
        .rows = rows,
        .columns = columns,
        .gates = gates,
        .x_stride = x_stride,
        .cyclic = cyclic,
        .threads = threads,
        .grad = grad,
        .grad_stride = grad_stride,
        .grad_x = grad_x,
        .grad_gate = grad_gate,
        .size = SIZES[dtype],
        .wide = dtype == FLOAT64 ? 8 : 4,
        .each = each[dtype],
    };
    work.past_caches = grad_x && rows * columns * work.size >= PAST_CACHES;
    int failed = plan(&work);
    double *total = calloc((size_t)gates, 8);
    work.piece_sum = calloc((size_t)work.piece_count + 1, 8);
    if (!failed && (!total || !work.piece_sum)) failed = 1;
    if (!failed) failed = run(&work, parallel);
    if (!failed && grad_gate) write_grad_gate(&work, dtype, total);
    free(total);
    release(&work);
    return failed;
}
