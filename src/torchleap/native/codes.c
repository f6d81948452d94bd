/* Numbers for distinct values, in the order of their first appearance: a hash table from 64-bit
 * hashes to codes.
 *
 * Values come in blocks of many thousand rows, so the slot of each value is prefetched some rows
 * before it is read.
 */
#include <stdint.h>
#include <stdlib.h>

enum { ROWS_AHEAD = 24 };

typedef struct {
    uint64_t hash;
    int64_t code; /* from 1; 0 is an empty slot */
} Entry;

typedef struct {
    Entry *entries;
    uint64_t mask; /* the number of slots minus 1 */
    int64_t count;
} Codes;

static inline uint64_t slot_of(uint64_t hash, uint64_t mask) {
    return (hash * 0x9E3779B97F4A7C15u >> 20) & mask;
}

void *torchleap_codes_new(void) {
    Codes *codes = calloc(1, sizeof(Codes));
    if (!codes) return NULL;
    codes->mask = (1 << 10) - 1;
    codes->entries = calloc(codes->mask + 1, sizeof(Entry));
    if (codes->entries) return codes;
    free(codes);
    return NULL;
}

void torchleap_codes_free(void *table) {
    Codes *codes = table;
    if (codes) free(codes->entries);
    free(codes);
}

/* Make the table four times as large; return 1 if there is no memory for it. */
static int grow(Codes *codes) {
    const uint64_t mask = 4 * (codes->mask + 1) - 1;
    Entry *entries = calloc(mask + 1, sizeof(Entry));
    if (!entries) return 1;
    for (uint64_t i = 0; i <= codes->mask; i++) {
        if (!codes->entries[i].code) continue;
        uint64_t slot = slot_of(codes->entries[i].hash, mask);
        while (entries[slot].code) slot = (slot + 1) & mask;
        entries[slot] = codes->entries[i];
    }
    free(codes->entries);
    codes->entries = entries;
    codes->mask = mask;
    return 0;
}

/* Write the code of each row to `found`, and the rows with a value that is new to `fresh`.
 * Return the number of new values, or -1 if there is no memory for them. */
int64_t torchleap_codes_of(void *table, const uint64_t *hashes, int64_t rows, int32_t *found,
                           int64_t *fresh) {
    Codes *codes = table;
    int64_t new = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (row + ROWS_AHEAD < rows)
            __builtin_prefetch(&codes->entries[slot_of(hashes[row + ROWS_AHEAD], codes->mask)]);
        uint64_t slot = slot_of(hashes[row], codes->mask);
        while (codes->entries[slot].code && codes->entries[slot].hash != hashes[row])
            slot = (slot + 1) & codes->mask;
        if (!codes->entries[slot].code) {
            codes->entries[slot] = (Entry){.hash = hashes[row], .code = ++codes->count};
            fresh[new++] = row;
        }
        found[row] = (int32_t)codes->entries[slot].code;
        if (2 * (uint64_t)codes->count > codes->mask && grow(codes)) return -1;
    }
    return new;
}
