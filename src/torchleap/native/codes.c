/* Numbers for distinct values, in the order in which they first come: a hash table from 64-bit hashes to codes.
 *
 * Values come by the hundred thousand, so the place of each is asked for some rows before it is looked at.
 */
#include <stdint.h>
#include <stdlib.h>

enum { ROWS_AHEAD = 24 };

typedef struct {
    uint64_t hash;
    int64_t code;                     /* from 1; 0 is an empty place */
} Entry;

typedef struct {
    Entry *entries;
    uint64_t mask;                    /* places less 1 */
    int64_t count;
} Codes;

static inline uint64_t place_of(uint64_t hash, uint64_t mask) { return (hash * 0x9E3779B97F4A7C15u >> 20) & mask; }

void *torchleap_codes_new(void) {
    Codes *codes = calloc(1, sizeof(Codes));
    if (!codes) return NULL;
    codes->mask = (1 << 10) - 1;
    codes->entries = calloc(codes->mask + 1, sizeof(Entry));
    if (codes->entries) return codes;
    free(codes);
    return NULL;
}

void torchleap_codes_free(void *made) {
    Codes *codes = made;
    if (codes) free(codes->entries);
    free(codes);
}

static int grow(Codes *codes) {
    const uint64_t mask = 4 * (codes->mask + 1) - 1;
    Entry *entries = calloc(mask + 1, sizeof(Entry));
    if (!entries) return 1;
    for (uint64_t i = 0; i <= codes->mask; i++) {
        if (!codes->entries[i].code) continue;
        uint64_t place = place_of(codes->entries[i].hash, mask);
        while (entries[place].code) place = (place + 1) & mask;
        entries[place] = codes->entries[i];
    }
    free(codes->entries);
    codes->entries = entries;
    codes->mask = mask;
    return 0;
}

/* The code of each row into `found`, and into `fresh` the rows that brought a new one. Returns how many did, -1 without memory. */
int64_t torchleap_codes_of(void *made, const uint64_t *hashes, int64_t rows, int32_t *found, int64_t *fresh) {
    Codes *codes = made;
    int64_t new = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (row + ROWS_AHEAD < rows) __builtin_prefetch(&codes->entries[place_of(hashes[row + ROWS_AHEAD], codes->mask)]);
        uint64_t place = place_of(hashes[row], codes->mask);
        while (codes->entries[place].code && codes->entries[place].hash != hashes[row]) place = (place + 1) & codes->mask;
        if (!codes->entries[place].code) {
            codes->entries[place] = (Entry){.hash = hashes[row], .code = ++codes->count};
            fresh[new++] = row;
        }
        found[row] = (int32_t)codes->entries[place].code;
        if (2 * (uint64_t)codes->count > codes->mask && grow(codes)) return -1;
    }
    return new;
}
