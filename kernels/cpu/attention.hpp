// Causal attention through block tables: prefill, decode and mixed.
//
// A task is one KV head of a few query tokens of one sequence. Its rows (token x query head of the group) share every
// key and value they read, which go by in tiles of TILE positions under an online softmax (Milakov and Gimelshein 2018,
// Dao et al. 2022). Keys lie [dim, position] and values [position, dim], so both products run along contiguous memory.
// Where blocks hold whole vectors and rows are few (decode), tiles are read in place; else they are unpacked to float.
// Slots past the context are never multiplied: they may hold NaN.

#pragma once

#include <vector>

#include "simd.hpp"

namespace {

constexpr int TILE = 64;         // positions between two softmax updates
constexpr int TARGET_ROWS = 64;  // rows of a prefill task
constexpr int VECTORS = TILE / W;
#if defined(__AVX512F__)
constexpr int MAX_MR = 6, MAX_NV = 4;  // register tile: rows x vectors, 24 of 32 registers
#else
constexpr int MAX_MR = 4, MAX_NV = 2;
#endif

}  // namespace

struct AttentionArgs {
    const void *query, *key_cache, *value_cache;
    void* out;
    const int32_t *block_tables, *query_starts, *context_lens;
    int64_t query_stride, table_stride, num_blocks;
    int32_t tokens, sequences, heads, kv_heads, head_dim, block_size, table_width;
    int32_t query_dtype, cache_dtype, threads;
    float scale;
};

namespace {

struct Task {
    int32_t sequence, kv_first, kv_count, first, count;
};

// Per-thread memory, kept between calls.
struct Scratch {
    std::vector<float> memory;
    float *query, *scores, *out, *top, *next_top, *total, *decay, *keys, *values;
    int rows, padded_rows, padded_dim;

    void shape(int rows_, int head_dim) {
        rows = rows_;
        padded_rows = (rows + W - 1) / W * W;
        padded_dim = (head_dim + W - 1) / W * W;
        size_t sizes[] = {size_t(rows) * head_dim,   size_t(rows) * TILE,      size_t(rows) * padded_dim,
                          size_t(padded_rows),       size_t(padded_rows),      size_t(padded_rows),
                          size_t(padded_rows),       size_t(head_dim) * TILE,  size_t(TILE) * padded_dim};
        size_t all = 16;
        for (size_t& size : sizes) all += size = (size + 15) / 16 * 16;
        if (memory.size() < all) memory.resize(all);
        float* p = (float*)((uintptr_t(memory.data()) + 63) / 64 * 64);
        float** fields[] = {&query, &scores, &out, &top, &next_top, &total, &decay, &keys, &values};
        for (int i = 0; i < 9; p += sizes[i++]) *fields[i] = p;
    }
};

// scores[i][j * W + lane] = sum over d of query[i][d] * keys[j][d * stride + lane]
template <int MR, int NV, class T>
inline void score_tile(const float* query, int head_dim, const T* const* keys, int64_t stride, float* scores) {
    vf acc[MR][NV] = {};
    for (int d = 0; d < head_dim; d++) {
        vf k[NV];
        for (int j = 0; j < NV; j++) k[j] = load(keys[j] + d * stride);
        for (int i = 0; i < MR; i++) {
            vf q = splat(query[i * head_dim + d]);
            for (int j = 0; j < NV; j++) acc[i][j] += q * k[j];
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) store(scores + i * TILE + j * W, acc[i][j]);
}

// out[i] = out[i] * decay[i] + sum over positions of weights[i][position] * values[position]
template <int MR, int NV, class T>
inline void value_tile(const float* weights, int positions, const T* const* values, int dim, const float* decay,
                       float* out, int64_t out_stride) {
    vf acc[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) acc[i][j] = load(out + i * out_stride + j * W) * decay[i];
    for (int p = 0; p < positions; p++) {
        vf v[NV];
        for (int j = 0; j < NV; j++) v[j] = load(values[p] + dim + j * W);
        for (int i = 0; i < MR; i++) {
            vf w = splat(weights[i * TILE + p]);
            for (int j = 0; j < NV; j++) acc[i][j] += w * v[j];
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) store(out + i * out_stride + j * W, acc[i][j]);
}

// Turn run-time counts (mr <= MAX_MR, nv <= MAX_NV) into template arguments.
template <int MR, int NV, class Body>
inline void with_tile(int mr, int nv, Body body) {
    if constexpr (MR > 1) {
        if (mr < MR) return with_tile<MR - 1, NV>(mr, nv, body);
    }
    if constexpr (NV > 1) {
        if (nv < NV) return with_tile<MR, NV - 1>(mr, nv, body);
    }
    body(std::integral_constant<int, MR>{}, std::integral_constant<int, NV>{});
}

// Scores of `positions` positions for the rows first..rows, with keys[j] at vector j of the tile.
template <class T>
void score_rows(Scratch& s, int first, int head_dim, int positions, const T* const* keys, int64_t stride) {
    int vectors = (positions + W - 1) / W;
    for (int r = first; r < s.rows; r += MAX_MR)
        for (int j = 0; j < vectors; j += MAX_NV)
            with_tile<MAX_MR, MAX_NV>(std::min(MAX_MR, s.rows - r), std::min(MAX_NV, vectors - j), [&](auto mr, auto nv) {
                score_tile<mr(), nv()>(s.query + r * head_dim, head_dim, keys + j, stride, s.scores + r * TILE + j * W);
            });
}

template <class T>
void value_rows(Scratch& s, int first, int positions, const T* const* values) {
    int vectors = s.padded_dim / W;
    for (int r = first; r < s.rows; r += MAX_MR)
        for (int j = 0; j < vectors; j += MAX_NV)
            with_tile<MAX_MR, MAX_NV>(std::min(MAX_MR, s.rows - r), std::min(MAX_NV, vectors - j), [&](auto mr, auto nv) {
                value_tile<mr(), nv()>(s.scores + r * TILE, positions, values, j * W, s.decay + r,
                                       s.out + r * s.padded_dim + j * W, s.padded_dim);
            });
}

// Turn the tile's scores into weights. visible(row) positions of the tile count; the rest get weight 0.
template <class Visible>
void softmax_rows(Scratch& s, int first, int positions, Visible visible) {
    const vf lanes = lane_index();
    const int vectors = (positions + W - 1) / W;
    for (int r = first; r < s.rows; r++) {
        vf top = splat(s.top[r]);
        for (int j = 0; j < vectors; j++) {
            vf x = load(s.scores + r * TILE + j * W);
            x = lanes < float(visible(r) - j * W) ? x : splat(-__builtin_inff());
            store(s.scores + r * TILE + j * W, x);
            top = x > top ? x : top;  // a NaN score does not raise the top; it makes its weight NaN below
        }
        s.next_top[r] = largest(top);
    }
    for (int r = first / W * W; r < s.padded_rows; r += W)
        store(s.decay + r, exp_nonpositive(load(s.top + r) - load(s.next_top + r)));
    for (int r = first; r < s.rows; r++) {
        vf total = {};
        for (int j = 0; j < vectors; j++) {
            vf weight = exp_nonpositive(load(s.scores + r * TILE + j * W) - s.next_top[r]);
            store(s.scores + r * TILE + j * W, weight);
            total += weight;
        }
        s.total[r] = s.total[r] * s.decay[r] + sum(total);
        s.top[r] = s.next_top[r];
    }
}

// One tile's keys and values: where each vector of keys and each position's values begin.
template <class T>
struct Tile {
    const T* keys[VECTORS];
    const T* values[TILE];
};

// Ask for the next tile while this one is worked on: blocks lie scattered, so the hardware can't guess.
template <class T>
void prefetch(const AttentionArgs& a, int sequence, int kv_head, int start) {
    if (a.block_size > TILE) return;  // long runs: the hardware sees them coming
    const int32_t* table = a.block_tables + sequence * a.table_stride;
    const int64_t slab = int64_t(a.head_dim) * a.block_size;
    const int end = std::min(start + TILE, a.context_lens[sequence]);
    for (int p = start; p < end; p += a.block_size) {
        int64_t base = (int64_t(table[p / a.block_size]) * a.kv_heads + kv_head) * slab;
        const T *keys = (const T*)a.key_cache + base, *values = (const T*)a.value_cache + base;
        for (int64_t i = 0; i < slab; i += 64 / int64_t(sizeof(T))) {
            __builtin_prefetch(keys + i, 0, 2);  // to L2: a whole tile at once is more than L1 has buffers for
            __builtin_prefetch(values + i, 0, 2);
        }
    }
}

template <class T>
void locate(const AttentionArgs& a, const int32_t* table, int kv_head, int start, int positions, Tile<T>& tile) {
    const int64_t slab = int64_t(a.head_dim) * a.block_size;
    int block = start / a.block_size, offset = start % a.block_size;
    for (int p = 0; p < positions; block++, offset = 0) {  // block by block: a division a position would cost a fifth of it all
        const int64_t base = (int64_t(table[block]) * a.kv_heads + kv_head) * slab;
        const T *keys = (const T*)a.key_cache + base, *values = (const T*)a.value_cache + base;
        for (const int end = std::min(p + a.block_size - offset, positions); p < end; p++, offset++) {
            if (p % W == 0) tile.keys[p / W] = keys + offset;
            tile.values[p] = values + int64_t(offset) * a.head_dim;
        }
    }
}

// Copy a tile to float: keys [dim, TILE], values [TILE, padded dim], so that many rows read it cheaply.
template <class T>
void unpack(const AttentionArgs& a, const int32_t* table, int kv_head, int start, int positions, Scratch& s) {
    const int64_t slab = int64_t(a.head_dim) * a.block_size;
    for (int p = 0; p < positions;) {
        int block = (start + p) / a.block_size, offset = (start + p) % a.block_size;
        int run = std::min(a.block_size - offset, positions - p);
        int64_t base = (int64_t(table[block]) * a.kv_heads + kv_head) * slab;
        const T* keys = (const T*)a.key_cache + base + offset;
        const T* values = (const T*)a.value_cache + base + int64_t(offset) * a.head_dim;
        for (int d = 0; d < a.head_dim; d++) {
            float* to = s.keys + d * TILE + p;
            const T* from = keys + int64_t(d) * a.block_size;
            int i = 0;
            for (; i + W <= run; i += W) store(to + i, load(from + i));
            for (; i < run; i++) to[i] = to_float(from[i]);
        }
        for (int i = 0; i < run; i++)
            in_vectors(a.head_dim, [&](int64_t d, int lanes) {
                store(s.values + (p + i) * s.padded_dim + d, load_lanes(values + i * a.head_dim + d, lanes));
            });
        p += run;
    }
}

template <class Q>
void load_query(const AttentionArgs& a, const Task& t, int kv_head, Scratch& s) {
    const int group = a.heads / a.kv_heads;
    const int64_t row = a.query_starts[t.sequence] + t.first;
    for (int r = 0; r < s.rows; r++) {
        const Q* from = (const Q*)a.query + (row + r / group) * a.query_stride +
                        int64_t(kv_head * group + r % group) * a.head_dim;
        in_vectors(a.head_dim, [&](int64_t d, int lanes) {
            store_lanes(s.query + r * a.head_dim + d, load_lanes(from + d, lanes) * a.scale, lanes);
        });
    }
    std::fill(s.out, s.out + s.rows * s.padded_dim, 0.0f);
    std::fill(s.total, s.total + s.padded_rows, 0.0f);
    std::fill(s.top, s.top + s.padded_rows, -__builtin_inff());
    std::fill(s.next_top, s.next_top + s.padded_rows, 0.0f);
}

template <class Q>
void store_out(const AttentionArgs& a, const Task& t, int kv_head, const Scratch& s) {
    const int group = a.heads / a.kv_heads;
    const int64_t row = a.query_starts[t.sequence] + t.first;
    for (int r = 0; r < s.rows; r++) {
        Q* to = (Q*)a.out + ((row + r / group) * a.heads + kv_head * group + r % group) * a.head_dim;
        float share = 1.0f / s.total[r];
        in_vectors(a.head_dim, [&](int64_t d, int lanes) {
            store_lanes(to + d, load(s.out + r * s.padded_dim + d) * share, lanes);
        });
    }
}

// One tile of one KV head. first: the first row that sees anything of it; rows of earlier tokens do not.
template <class T>
void attend_tile(const AttentionArgs& a, const Task& t, int kv_head, int start, int first_limit, bool in_place, Scratch& s) {
    const int group = a.heads / a.kv_heads;
    const int32_t* table = a.block_tables + t.sequence * a.table_stride;
    const int positions = std::min(TILE, first_limit + t.count - 1 - start);
    const int first = std::max(0, start - first_limit + 1) * group;
    auto visible = [&](int r) { return first_limit + r / group - start; };
    if (in_place) {
        Tile<T> tile;
        locate(a, table, kv_head, start, positions, tile);
        score_rows(s, first, a.head_dim, positions, tile.keys, a.block_size);
        softmax_rows(s, first, positions, visible);
        value_rows(s, first, positions, tile.values);
    } else {
        Tile<float> tile;
        for (int j = 0; j < VECTORS; j++) tile.keys[j] = s.keys + j * W;
        for (int p = 0; p < TILE; p++) tile.values[p] = s.values + p * s.padded_dim;
        unpack<T>(a, table, kv_head, start, positions, s);
        score_rows(s, first, a.head_dim, positions, tile.keys, TILE);
        softmax_rows(s, first, positions, visible);
        value_rows(s, first, positions, tile.values);
    }
}

template <class T>
void attend(const AttentionArgs& a, const Task& t, const Task* next, Scratch* scratch) {
    const int query_len = a.query_starts[t.sequence + 1] - a.query_starts[t.sequence];
    const int first_limit = a.context_lens[t.sequence] - query_len + t.first + 1;  // positions the first token sees
    const int last_limit = first_limit + t.count - 1;
    const int rows = t.count * (a.heads / a.kv_heads);
    const bool in_place = rows <= 2 * MAX_MR && a.block_size % W == 0 && a.head_dim % W == 0;
    const auto load_rows = a.query_dtype == BFLOAT16 ? load_query<bf16> : load_query<float>;
    const auto store_rows = a.query_dtype == BFLOAT16 ? store_out<bf16> : store_out<float>;
    for (int h = 0; h < t.kv_count; h++) {
        scratch[h].shape(rows, a.head_dim);
        load_rows(a, t, t.kv_first + h, scratch[h]);
    }
    for (int start = 0; start < last_limit; start += TILE)
        for (int h = 0; h < t.kv_count; h++) {
            if (in_place && start + TILE < last_limit)
                prefetch<T>(a, t.sequence, t.kv_first + h, start + TILE);
            else if (in_place && next && h < next->kv_count)
                prefetch<T>(a, next->sequence, next->kv_first + h, 0);
            attend_tile<T>(a, t, t.kv_first + h, start, first_limit, in_place, scratch[h]);
        }
    for (int h = 0; h < t.kv_count; h++) store_rows(a, t, t.kv_first + h, scratch[h]);
}

// 0, or what is wrong with the numbers: 1 lengths, 2 a block that the cache does not have.
int check(const AttentionArgs& a) {
    if (a.query_starts[0] != 0 || a.query_starts[a.sequences] != a.tokens) return 1;
    for (int r = 0; r < a.sequences; r++) {
        int64_t query_len = int64_t(a.query_starts[r + 1]) - a.query_starts[r], context = a.context_lens[r];
        if (query_len < 0 || context < query_len || context > int64_t(a.table_width) * a.block_size) return 1;
        if (query_len == 0) continue;
        const int32_t* table = a.block_tables + r * a.table_stride;
        int64_t blocks = (context + a.block_size - 1) / a.block_size, wrong = 0;
        for (int64_t i = 0; i < blocks; i++) wrong += table[i] < 0 || table[i] >= a.num_blocks;
        if (wrong) return 2;
    }
    return 0;
}

// What there is to do, for each KV head or, in a decode with sequences enough to share out, for all of them at once:
// they lie side by side in a block.
std::vector<Task> attention_tasks(const AttentionArgs& a) {
    const int per_task = std::max(1, TARGET_ROWS / (a.heads / a.kv_heads));
    const int decode_heads = a.sequences >= 4 * a.threads ? a.kv_heads : 1;
    std::vector<Task> tasks;
    for (int r = a.sequences - 1; r >= 0; r--) {
        int query_len = a.query_starts[r + 1] - a.query_starts[r];
        // The last tokens of a prefill see most: they go first, so that no thread is left with a long task at the end.
        for (int first = (query_len - 1) / per_task * per_task; query_len && first >= 0; first -= per_task)
            for (int kv_head = 0; kv_head < a.kv_heads; kv_head += query_len == 1 ? decode_heads : 1)
                tasks.push_back({r, kv_head, query_len == 1 ? decode_heads : 1, first, std::min(per_task, query_len - first)});
    }
    return tasks;
}

}  // namespace
