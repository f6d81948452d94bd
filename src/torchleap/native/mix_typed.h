/* Included by mix.c once per element type: values are stored as ELEMENT and computed as WIDE. */

/* One case per width that a piece can have: with a constant width, the inner loops become a few
 * vector instructions. */
#define FOR_EACH_WIDTH(width, BODY) \
    switch (width) {                \
        case 1: BODY(1) break;      \
        case 2: BODY(2) break;      \
        case 4: BODY(4) break;      \
        case 8: BODY(8) break;      \
        case 16: BODY(16) break;    \
        case 32: BODY(32) break;    \
        case 64: BODY(64) break;    \
        default: BODY(128)          \
    }

/* Pack a panel, and sum its columns if `sums` is set. */
static void NAME(pack)(const Work *work, const Panel *panel, Scratch *s, int sums) {
    enum { UNIT = LINE / sizeof(ELEMENT) };
    const int64_t width = panel->width, pitch = pitch_of(width, sizeof(ELEMENT));
    const int64_t stride = work->x_stride, bytes = width * (int64_t)sizeof(ELEMENT);
    const ELEMENT *restrict x = (const ELEMENT *)work->x + panel->first;
    ELEMENT *restrict packed = (ELEMENT *)s->packed;
    WIDE *restrict sum = (WIDE *)s->tile_sum;
    /* the last offset at which complete lines can be read */
    const int64_t last_safe = (work->rows - 1) * stride + work->columns - panel->first - pitch;
    memset(s->total, 0, (size_t)width * 8);
    for (int64_t start = 0; start < work->rows; start += TILE) {
        if (sums) memset(sum, 0, (size_t)pitch * sizeof(WIDE));
        for (int64_t row = start; row < smaller(start + TILE, work->rows); row++) {
            const ELEMENT *restrict from = x + row * stride;
            ELEMENT *restrict to = packed + row * pitch;
            PREFETCH(from + AHEAD * stride, bytes);
            copy_row((char *)to, (const char *)from, bytes, row * stride > last_safe);
            for (int64_t c = 0; sums && c < width; c += UNIT) {
#pragma omp simd
                for (int64_t i = 0; i < UNIT; i++) sum[c + i] += READ(to[c + i]);
            }
        }
        for (int64_t c = 0; sums && c < width; c++) s->total[c] += sum[c];
    }
}

/* Compute the codes and deviations of the sampled rows, for each gate of the panel. */
static void NAME(measure_sample)(const Work *work, const Panel *panel, Scratch *s) {
    const int64_t width = panel->width, pitch = pitch_of(width, sizeof(ELEMENT));
    const int64_t sample = work->sample, half = larger(1, sample / 2);
    const ELEMENT *packed = (const ELEMENT *)s->packed;
    WIDE *restrict centre = (WIDE *)s->centre;
    memset(centre, 0, (size_t)width * sizeof(WIDE));
    memset(s->code, 0, (size_t)(panel->gates * sample) * 8);
    memset(s->deviation, 0, (size_t)(panel->gates * sample) * 8);
    for (int64_t i = 0; i < sample; i++) {
        const ELEMENT *restrict row = packed + work->common_order[i] * pitch;
#pragma omp simd
        for (int64_t c = 0; c < width; c++) centre[c] += READ(row[c]);
    }
    for (int64_t c = 0; c < width; c++) centre[c] /= (WIDE)sample;
    for (int64_t p = panel->piece; p < panel->end; p++) {
        const Piece *piece = &work->pieces[p];
        const int64_t at = piece->first - panel->first;
        const WIDE *restrict middle = centre + at;
        uint64_t *restrict code = s->code + piece->local * sample;
        double *restrict deviation = s->deviation + piece->local * sample;
        uint32_t weight[PIECE];
        if (piece->part >= 0) {
            code = work->parts[piece->part].code;
            deviation = work->parts[piece->part].deviation;
            memset(code, 0, (size_t)sample * 8);
            memset(deviation, 0, (size_t)sample * 8);
        }
        for (int64_t c = 0; c < piece->width; c++)
            weight[c] = (uint32_t)(scramble((uint64_t)(piece->first + c)) >> 32) | 1;
#define MEASURE(WIDTH)                                                                             \
    for (int64_t i = 0; i < sample; i++) {                                                         \
        const ELEMENT *restrict row = packed + work->common_order[i] * pitch + at;                 \
        uint64_t sum = 0;                                                                          \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < (WIDTH); c++)               \
            sum += (uint64_t)BITS(READ(row[c])) * weight[c];                                       \
        code[i] += sum;                                                                            \
    }                                                                                              \
    for (int64_t i = half; i < sample; i++) {                                                      \
        const ELEMENT *restrict row = packed + work->common_order[i] * pitch + at;                 \
        WIDE sum = 0;                                                                              \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < (WIDTH); c++)               \
            sum += (READ(row[c]) - middle[c]) * (READ(row[c]) - middle[c]);                        \
        deviation[i] += sum;                                                                       \
    }
        FOR_EACH_WIDTH(piece->width, MEASURE)
#undef MEASURE
    }
}

/* Mix one piece of the rows of a tile, and add each row's squared change to `into`. */
static void NAME(mix_piece)(const ELEMENT *packed, int64_t pitch, int64_t start, int64_t rows,
                            const uint32_t *order, WIDE fraction, ELEMENT *to, int64_t to_pitch,
                            WIDE *restrict into, int64_t width) {
    const WIDE rest = 1 - fraction;
#define MIX(WIDTH)                                                                                 \
    for (int64_t row = 0; row < rows; row++) {                                                     \
        const ELEMENT *restrict clean = packed + (start + row) * pitch;                            \
        const ELEMENT *restrict shuffled = packed + (int64_t)order[start + row] * pitch;           \
        ELEMENT *restrict result = to + row * to_pitch;                                            \
        WIDE sum = 0;                                                                              \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t c = 0; c < (WIDTH); c++) {             \
            const WIDE a = READ(clean[c]), b = READ(shuffled[c]);                                  \
            result[c] = WRITE(fraction * a + rest * b);                                            \
            sum += (a - b) * (a - b);                                                              \
        }                                                                                          \
        into[row] += sum;                                                                          \
    }
    FOR_EACH_WIDTH(width, MIX)
#undef MIX
}

/* Write the statistics of a gate from its sums. */
static void NAME(write_gate)(const Work *work, int64_t gate, double distance, double square,
                             const uint64_t *code, const double *deviation) {
    double common, spread;
    most_common(code, deviation, work->sample, &common, &spread);
    WIDE *of_gate = (WIDE *)work->statistics + gate;
    of_gate[0] = (WIDE)(distance / (double)work->rows);
    of_gate[work->gates] = (WIDE)(square / (double)work->rows);
    of_gate[2 * work->gates] = (WIDE)common;
    of_gate[3 * work->gates] = (WIDE)(spread / (double)work->width_of[gate]);
}

/* Add the distances and squares of the rows of one tile. */
static void NAME(add_tile)(const WIDE *restrict row_square, int64_t rows, double *distances,
                           double *squares) {
    WIDE distance = 0, square = 0;
#pragma omp simd reduction(+ : distance, square)
    for (int64_t row = 0; row < rows; row++) {
        distance += ROOT(row_square[row]);
        square += row_square[row];
    }
    *distances += distance;
    *squares += square;
}

/* Write the results of a tile to the target; the thread's panels begin with `first_column`. */
static void NAME(write_tile)(const Work *work, const Panel *panel, Scratch *s, void *target,
                             int64_t start, int64_t rows, int64_t first_column, int last) {
    const int64_t size = (int64_t)sizeof(ELEMENT), bytes = panel->width * size;
    const int64_t before = (panel->first - first_column) * size;
    const int64_t pitch = pitch_of(panel->width, size) * size + LINE;
    for (int64_t row = 0; row < rows; row++) {
        char *to = (char *)target + ((start + row) * work->columns + panel->first) * size;
        char *from = s->result + LINE + row * pitch;
        char *carry = s->carry + (start + row) * LINE;
        if (work->past_caches)
            write_past_caches(to, from, bytes, carry, before, last);
        else
            memcpy(to, from, (size_t)bytes);
    }
}

/* Mix and measure the panels from `number` to `end`. */
static void NAME(forward)(const void *given, void *own, int64_t number, int64_t end) {
    const Work *work = given;
    Scratch *s = own;
    const int64_t first_column = work->panels[number].first;
    for (; number < end; number++) {
        const Panel *panel = &work->panels[number];
        const int64_t pitch = pitch_of(panel->width, sizeof(ELEMENT));
        const int64_t result_pitch = pitch + LINE / (int64_t)sizeof(ELEMENT);
        ELEMENT *const result = (ELEMENT *)(s->result + LINE);
        NAME(pack)(work, panel, s, 1);
        for (int64_t c = 0; c < panel->width; c++)
            ((WIDE *)work->mean)[panel->first + c] = (WIDE)(s->total[c] / (double)work->rows);
        draw_orders(work, panel, s);
        NAME(measure_sample)(work, panel, s);
        memset(s->distance, 0, (size_t)panel->gates * 8);
        memset(s->square, 0, (size_t)panel->gates * 8);
        for (int64_t start = 0; start < work->rows; start += TILE) {
            const int64_t rows = smaller(TILE, work->rows - start);
            memset(s->row_square, 0, (size_t)(panel->gates * TILE) * sizeof(WIDE));
            for (int64_t i = panel->piece; i < panel->end; i++) {
                const Piece *piece = &work->pieces[i];
                const int64_t at = piece->first - panel->first;
                WIDE *into = (WIDE *)s->row_square + piece->local * TILE;
                if (piece->part >= 0) {
                    into = (WIDE *)work->parts[piece->part].square + start;
                    memset(into, 0, (size_t)rows * sizeof(WIDE));
                }
                NAME(mix_piece)((const ELEMENT *)s->packed + at, pitch, start, rows,
                                s->orders + piece->local * work->rows,
                                ((const WIDE *)work->gate)[piece->gate], result + at, result_pitch,
                                into, piece->width);
            }
            for (int64_t g = 0; g < panel->gates; g++)
                NAME(add_tile)((const WIDE *)s->row_square + g * TILE, rows, &s->distance[g],
                               &s->square[g]);
            NAME(write_tile)(work, panel, s, work->output, start, rows, first_column,
                             number + 1 == end);
        }
        for (int64_t i = panel->piece; i < panel->end; i++) {
            const Piece *piece = &work->pieces[i];
            if (piece->part < 0) /* each piece of a gate writes the same */
                NAME(write_gate)(work, piece->gate, s->distance[piece->local],
                                 s->square[piece->local], s->code + piece->local * work->sample,
                                 s->deviation + piece->local * work->sample);
        }
    }
}

/* Add up the pieces of gates that lie in several panels, in the order of the columns. */
static void NAME(finish)(const Work *work) {
    for (int64_t i = 0; i < work->part_count; i++) {
        const Part *sum = &work->parts[i];
        if (!sum->first) continue;
        WIDE *restrict square = sum->square;
        for (const Part *part = sum; part->next >= 0;) {
            part = &work->parts[part->next];
            const WIDE *restrict more = part->square;
            for (int64_t row = 0; row < work->rows; row++) square[row] += more[row];
            for (int64_t k = 0; k < work->sample; k++) {
                sum->code[k] += part->code[k];
                sum->deviation[k] += part->deviation[k];
            }
        }
        double distances = 0, squares = 0;
        for (int64_t start = 0; start < work->rows; start += TILE)
            NAME(add_tile)(square + start, smaller(TILE, work->rows - start), &distances,
                           &squares);
        NAME(write_gate)(work, sum->gate, distances, squares, sum->code, sum->deviation);
    }
}

enum { NAME(LANES) = LINE / sizeof(WIDE) };
#define LANES NAME(LANES)
typedef WIDE NAME(Vector) __attribute__((vector_size(LINE)));

static inline NAME(Vector) NAME(load)(const ELEMENT *from) {
    NAME(Vector) values;
    for (int i = 0; i < LANES; i++) values[i] = READ(from[i]);
    return values;
}

/* Return the gradient of a gate from one piece of the rows of a tile. */
static double NAME(differentiate_piece)(const ELEMENT *packed, int64_t pitch, int64_t start,
                                        int64_t rows, const uint32_t *order, const ELEMENT *grad,
                                        int64_t width) {
    double total = 0;
#define DIFFERENTIATE(WIDTH)                                                                       \
    if ((WIDTH) < LANES) {                                                                         \
        WIDE sum[4 * (WIDTH)] = {0}; /* four sums in turn, so that none waits for another */       \
        for (int64_t row = 0; row < rows; row++) {                                                 \
            const ELEMENT *restrict clean = packed + (start + row) * pitch;                        \
            const ELEMENT *restrict shuffled = packed + (int64_t)order[start + row] * pitch;       \
            const ELEMENT *restrict from = grad + row * pitch;                                     \
            WIDE *restrict own = sum + (row & 3) * (WIDTH);                                        \
            _Pragma("omp simd") for (int64_t c = 0; c < (WIDTH); c++)                              \
                own[c] += READ(from[c]) * (READ(clean[c]) - READ(shuffled[c]));                    \
        }                                                                                          \
        for (int64_t c = 0; c < 4 * (WIDTH); c++) total += sum[c];                                 \
    } else {                                                                                       \
        NAME(Vector) sum[((WIDTH) + LANES - 1) / LANES] = {0}; /* stays in registers */            \
        for (int64_t row = 0; row < rows; row++) {                                                 \
            const ELEMENT *clean = packed + (start + row) * pitch, *from = grad + row * pitch;     \
            const ELEMENT *shuffled = packed + (int64_t)order[start + row] * pitch;                \
            _Pragma("GCC unroll 16") for (int v = 0; v < (WIDTH) / LANES; v++)                     \
                sum[v] += NAME(load)(from + v * LANES) *                                           \
                          (NAME(load)(clean + v * LANES) - NAME(load)(shuffled + v * LANES));      \
        }                                                                                          \
        for (int v = 0; v < (WIDTH) / LANES; v++)                                                  \
            for (int i = 0; i < LANES; i++) total += sum[v][i];                                    \
    }
    FOR_EACH_WIDTH(width, DIFFERENTIATE)
#undef DIFFERENTIATE
    return total;
}

/* Read a tile of the incoming gradient; times the gates, it is the gradient of the input. */
static void NAME(read_grad)(const Work *work, const Panel *panel, Scratch *s, int64_t start,
                            int64_t rows) {
    enum { UNIT = LINE / sizeof(ELEMENT) };
    const int64_t width = panel->width, pitch = pitch_of(width, sizeof(ELEMENT));
    const int64_t bytes = width * (int64_t)sizeof(ELEMENT);
    const ELEMENT *from = (const ELEMENT *)work->grad + start * work->grad_stride + panel->first;
    const WIDE *restrict fraction = (const WIDE *)s->fraction;
    const int64_t last_safe =
        (work->rows - 1) * work->grad_stride + work->columns - panel->first - pitch;
    for (int64_t row = 0; row < rows; row++, from += work->grad_stride) {
        ELEMENT *restrict to = (ELEMENT *)s->grad + row * pitch;
        ELEMENT *restrict result = (ELEMENT *)(s->result + LINE) + row * (pitch + UNIT);
        PREFETCH(from + AHEAD * work->grad_stride, bytes);
        copy_row((char *)to, (const char *)from, bytes,
                 (start + row) * work->grad_stride > last_safe);
        for (int64_t c = 0; work->grad_x && c < width; c += UNIT) {
#pragma omp simd
            for (int64_t i = 0; i < UNIT; i++)
                result[c + i] = WRITE(fraction[c + i] * READ(to[c + i]));
        }
    }
}

/* Compute the gradients of the panels from `number` to `end`. */
static void NAME(backward)(const void *given, void *own, int64_t number, int64_t end) {
    const Work *work = given;
    Scratch *s = own;
    const int64_t first_column = work->panels[number].first;
    for (; number < end; number++) {
        const Panel *panel = &work->panels[number];
        const int64_t pitch = pitch_of(panel->width, sizeof(ELEMENT));
        for (int64_t c = 0; c < panel->width; c++)
            ((WIDE *)s->fraction)[c] =
                ((const WIDE *)work->gate)[work->column_gate[panel->first + c]];
        if (work->grad_gate) {
            NAME(pack)(work, panel, s, 0);
            draw_orders(work, panel, s);
        }
        for (int64_t start = 0; start < work->rows; start += TILE) {
            const int64_t rows = smaller(TILE, work->rows - start);
            NAME(read_grad)(work, panel, s, start, rows);
            for (int64_t i = panel->piece; i < panel->end && work->grad_gate; i++) {
                const Piece *piece = &work->pieces[i];
                const int64_t at = piece->first - panel->first;
                work->piece_sum[i] += NAME(differentiate_piece)(
                    (const ELEMENT *)s->packed + at, pitch, start, rows,
                    s->orders + piece->local * work->rows, (const ELEMENT *)s->grad + at,
                    piece->width);
            }
            if (work->grad_x)
                NAME(write_tile)(work, panel, s, work->grad_x, start, rows, first_column,
                                 number + 1 == end);
        }
    }
}

#undef ELEMENT
#undef WIDE
#undef ROOT
#undef NAME
#undef READ
#undef WRITE
#undef BITS
#undef LANES
#undef FOR_EACH_WIDTH
