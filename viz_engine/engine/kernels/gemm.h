// Kernels for many tokens, as prefill makes them: tokens times a matrix of weights, and queries
// with the rows of the cache. What is multiplied is upcast to float32 in pieces that the first
// caches hold, so that memory is read in the type in which it lies.

#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "simd.h"

namespace {

constexpr int kHeight = 6;  // rows of a tile: with two vectors each they fill 12 of 16 registers
constexpr int kPanel = 2 * kLanes;  // columns of a tile
constexpr int kDepth = 320;         // products of a tile: a panel of so many fits the first cache
constexpr int kDeep = 16;           // what such depths are multiples of
constexpr int kUnroll = 8;
constexpr int kFetched = 32;  // numbers that memory gives at once, of bfloat16
constexpr int kMost = 264;          // rows that are widened at once: they fit the second cache
constexpr int64_t kPanels = 64;     // whose sums a thread keeps

// Keeps both in registers: GCC would load them again for each use.
inline void hold(Lanes& left, Lanes& right) {
#ifdef __x86_64__
  asm("" : "+x"(left), "+x"(right));
#endif
}

// c [kHeight, kPanel] = a [kHeight, kDepth] times b [depth, kPanel], added to what is there or not.
// `depth` is a multiple of kLanes.
inline void tile(const float* a, const float* b, int64_t depth, float* c, int64_t pitch, bool add) {
  Lanes sums[kHeight][2] = {};
  for (int64_t k = 0; k < depth; k += kUnroll) {
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; u++) {
      const float *x = a + k + u, *y = b + (k + u) * kPanel;
      Lanes left = load(y), right = load(y + kLanes);
      hold(left, right);
#pragma GCC unroll 6
      for (int r = 0; r < kHeight; r++) {
        sums[r][0] += left * x[r * kDepth];
        sums[r][1] += right * x[r * kDepth];
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kHeight; r++) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      float* at = c + r * pitch + i * kLanes;
      store(at, add ? sums[r][i] + load(at) : sums[r][i]);
    }
  }
}

// A panel [depth, kPanel] of `num` rows [num, depth], those that are missing as 0. `depth` is a
// multiple of kDeep.
template <class T>
inline void pack(const T* rows, int64_t pitch, int64_t num, int64_t depth, float* panel) {
  constexpr int kTogether = sizeof(float) / sizeof(T);  // two bfloat16 numbers move as one
  for (int64_t k = 0; k < depth; k += kTogether * kLanes) {
    for (int i = 0; k % kFetched == 0 && i < kPanel; i++)  // of the panel after this one
      __builtin_prefetch(rows + (kPanel + i) * pitch + k, 0, 2);
    for (int64_t half = 0; half < kPanel; half += kLanes) {
      Lanes x[kLanes];
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; i++)
        x[i] = half + i < num ? load_bits(rows + (half + i) * pitch + k) : Lanes{};
      transpose(x);
      float* to = panel + k * kPanel + half;
#pragma GCC unroll 8
      for (int i = 0; i < kLanes; i++) {
        if constexpr (kTogether == 1) {
          store(to + i * kPanel, x[i]);
        } else {
          store(to + 2 * i * kPanel, first_of(x[i]));
          store(to + (2 * i + 1) * kPanel, second_of(x[i]));
        }
      }
    }
  }
}

// --- tokens with a matrix -------------------------------------------------------------------

// The sums of panel p, rounded into their columns of y [m, n].
template <class T>
inline void finish(const float* sums, const T* bias, T* y, int64_t m, int64_t n, int64_t p) {
  const int64_t columns = std::min<int64_t>(kPanel, n - p * kPanel);
  alignas(32) float added[kPanel] = {};
  for (int64_t j = 0; bias && j < columns; j++) added[j] = wide(bias[p * kPanel + j]);
  y += p * kPanel;
  if (columns == kPanel) {
    const Lanes left = load(added), right = load(added + kLanes);
    for (int64_t row = 0; row < m; row++) {
      store(y + row * n, load(sums + row * kPanel) + left);
      store(y + row * n + kLanes, load(sums + row * kPanel + kLanes) + right);
    }
    return;
  }
  for (int64_t row = 0; row < m; row++)
    for (int64_t j = 0; j < columns; j++) y[row * n + j] = T(sums[row * kPanel + j] + added[j]);
}

// y [m, n] = x [m, k] times w [n, k]; m is at most kMost. Each thread has some panels of w, and
// goes through them once for each block of products: so long its rows stay in its second cache.
// It widens them itself: what another has just written is slow to read.
template <class T>
void linear_piece(const T* x, const T* w, const T* bias, T* y, int64_t m, int64_t n, int64_t k) {
  const int64_t tiles = (m + kHeight - 1) / kHeight, blocks = (k + kDepth - 1) / kDepth;
  const int64_t depth = (k / kDeep + blocks - 1) / blocks * kDeep;  // of a block but the last
  const int64_t size = tiles * kHeight * kPanel;
  at::parallel_for(0, (n + kPanel - 1) / kPanel, 1, [&](int64_t first, int64_t stop) {
    alignas(64) float panel[kDepth * kPanel];
    static thread_local std::vector<float> rows, sums;  // fresh memory would take as long again
    rows.resize(std::max<size_t>(rows.size(), tiles * kHeight * kDepth));
    sums.resize(std::max<size_t>(sums.size(), std::min(kPanels, stop - first) * size));
    for (; first < stop; first += kPanels) {
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t from = block * depth, num = std::min(depth, k - from);
        const bool ends = block + 1 == blocks;
        for (int64_t row = 0; row < tiles * kHeight; row++)
          for (int64_t j = 0; j < num; j += kLanes)
            store(rows.data() + row * kDepth + j, row < m ? load(x + row * k + from + j) : Lanes{});
        for (int64_t p = first; p < std::min(stop, first + kPanels); p++) {
          float* of = sums.data() + (p - first) * size;
          const int64_t columns = std::min<int64_t>(kPanel, n - p * kPanel);
          pack(w + p * kPanel * k + from, k, columns, num, panel);
          for (int64_t row = 0; row < m; row += kHeight) {
            for (int i = 0; ends && i < kHeight; i++)
              __builtin_prefetch(y + (row + i) * n + p * kPanel, 1);
            tile(rows.data() + row * kDepth, panel, num, of + row * kPanel, kPanel, block > 0);
          }
          if (ends) finish(of, bias, y, m, n, p);
        }
      }
    }
  });
}

template <class T>
void linear_many(const T* x, const T* w, const T* bias, T* y, int64_t m, int64_t n, int64_t k) {
  for (int64_t row = 0; row < m; row += kMost)
    linear_piece(x + row * k, w, bias, y + row * n, std::min<int64_t>(kMost, m - row), n, k);
}

// --- queries with the rows of the cache -----------------------------------------------------

constexpr int kAsked = 384;  // queries that share what is widened of the rows

// What each query [B, T] sees: columns [first, stop), of these all or what the mask says.
struct Sight {
  std::vector<int64_t> first, stop;
  std::vector<bool> all;
};

inline Sight sight_of(const at::Tensor& mask, int64_t batch, int64_t asked, int64_t columns) {
  Sight sight;
  for (int64_t i = 0; i < batch * asked; i++) {
    int64_t first = 0, stop = columns - asked + i % asked + 1;
    bool all = true;
    if (mask.defined()) {
      const bool* seen = mask.const_data_ptr<bool>() + i / asked * mask.stride(0) +
                         i % asked * mask.stride(2);
      for (stop = columns; stop > 0 && !seen[stop - 1];) stop--;
      while (first < stop && !seen[first]) first++;
      all = std::find(seen + first, seen + stop, false) == seen + stop;
    }
    sight.first.push_back(first);
    sight.stop.push_back(stop);
    sight.all.push_back(all);
  }
  return sight;
}

// The queries of one KV head from `start` on: some positions, each with its whole group.
template <class T>
struct Asked {
  const at::Tensor &query, &key, &value, &mask;
  const Sight& sight;
  float scale;
  int64_t b, head, start, num;  // positions

  int64_t group() const { return query.size(1) / key.size(1); }
  int64_t height() const { return (num * group() + kHeight - 1) / kHeight * kHeight; }
  int64_t place(int64_t row) const { return b * query.size(2) + start + row / group(); }
  bool is_row(int64_t row) const { return row < num * group(); }

  void operator()(T* out) const {
    const int64_t d = key.size(3), dv = value.size(3), rows = height();
    int64_t first = key.size(2), stop = 0;
    for (int64_t row = 0; is_row(row); row += group()) {
      first = std::min(first, sight.first[place(row)]);
      stop = std::max(stop, sight.stop[place(row)]);
    }
    auto queries = std::make_unique_for_overwrite<float[]>(rows * kDepth);
    std::vector<float> panels_k(kDepth * d), panels_v(kDepth * dv), mixed(rows * dv), sums(rows);
    std::vector<float> tops(rows, std::numeric_limits<float>::lowest());
    for (int64_t row = 0; is_row(row); row++) {
      const T* at = query.const_data_ptr<T>() + b * query.stride(0) +
                    (head * group() + row % group()) * query.stride(1) +
                    (start + row / group()) * query.stride(2);
      for (int64_t i = 0; i < d; i += kLanes)
        store(queries.get() + row * kDepth + i, load(at + i) * scale);
    }
    for (; first < stop; first += kDepth) {
      const int64_t columns = std::min<int64_t>(kDepth, stop - first);
      widen(first, columns, panels_k.data(), panels_v.data());
      for (int64_t row = 0; row < rows; row += kHeight)
        rows_with(row, first, columns, queries.get() + row * kDepth, panels_k.data(),
                  panels_v.data(), mixed.data() + row * dv, tops.data() + row, sums.data() + row);
    }
    for (int64_t row = 0; is_row(row); row++) {
      T* at = out + (place(row) * query.size(1) + head * group() + row % group()) * dv;
      const float all = sums[row] == 0 ? 1 : sums[row];  // it has seen nothing: 0
      const float* from = mixed.data() + row * dv;
      for (int64_t i = 0; i < dv; i += kLanes) store(at + i, load(from + i) / all);
    }
  }

  // Keys as panels [d, kPanel], values as panels [columns, kPanel] of each kPanel of their width.
  void widen(int64_t first, int64_t columns, float* keys, float* values) const {
    auto of = [&](const at::Tensor& t) {
      return t.const_data_ptr<T>() + b * t.stride(0) + head * t.stride(1) + first * t.stride(2);
    };
    // Looked up once: a tensor checks what it is asked for each time.
    const T *from_k = of(key), *from_v = of(value);
    const int64_t d = key.size(3), dv = value.size(3);
    const int64_t pitch_k = key.stride(2), pitch_v = value.stride(2);
    for (int64_t s = 0; s < columns; s += kPanel)
      pack(from_k + s * pitch_k, pitch_k, std::min<int64_t>(kPanel, columns - s), d, keys + s * d);
    for (int64_t s = 0; s < columns; s++)
      for (int64_t i = 0; i < dv; i += kLanes)
        store(values + i / kPanel * kPanel * kDepth + s * kPanel + i % kPanel,
              load(from_v + s * pitch_v + i));
  }

  // Of kHeight queries from `row` on: mixes in the values of the columns that they see.
  void rows_with(int64_t row, int64_t first, int64_t columns, const float* queries,
                 const float* keys, const float* values, float* mixed, float* tops,
                 float* sums) const {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    const int64_t d = key.size(3), dv = value.size(3);
    int64_t last = 0;
    for (int64_t r = row; r < row + kHeight && is_row(r); r++)
      last = std::max(last, std::min(columns, sight.stop[place(r)] - first));
    if (last <= 0) return;
    alignas(64) float scores[kHeight * kDepth];
    const int64_t padded = (last + kPanel - 1) / kPanel * kPanel;
    for (int64_t s = 0; s < padded; s += kPanel)
      tile(queries, keys + s * d, d, scores + s, kDepth, false);
    for (int64_t r = 0; r < kHeight; r++) {
      float* at = scores + r * kDepth;
      if (!is_row(row + r)) {
        std::fill(at, at + padded, 0.0f);
        continue;
      }
      const int64_t p = place(row + r);
      const int64_t from = std::clamp<int64_t>(sight.first[p] - first, 0, last);
      const int64_t stop = std::clamp<int64_t>(sight.stop[p] - first, from, last);
      if (!sight.all[p]) {
        const bool* seen = mask.const_data_ptr<bool>() + b * mask.stride(0) +
                           (p - b * query.size(2)) * mask.stride(2) + first;
        for (int64_t s = from; s < stop; s++) at[s] = seen[s] ? at[s] : kNever;
      }
      std::fill(at, at + from, kNever);
      std::fill(at + stop, at + padded, kNever);
      Lanes most = Lanes{} + tops[r], total = {};
      for (int64_t s = 0; s < padded; s += kLanes) most = larger(most, load(at + s));
      const float top = largest(most);
      for (int64_t s = 0; s < padded; s += kLanes) {
        const Lanes share = exp_of(load(at + s) - top);
        total += share;
        store(at + s, share);
      }
      const float before = exp_of(Lanes{} + (tops[r] - top))[0];
      sums[r] = sums[r] * before + sum(total);
      for (int64_t i = 0; i < dv; i += kLanes)
        store(mixed + r * dv + i, load(mixed + r * dv + i) * before);
      tops[r] = top;
    }
    const int64_t depth = (last + kLanes - 1) / kLanes * kLanes;
    for (int64_t i = 0; i < dv; i += kPanel)
      tile(scores, values + i * kDepth, depth, mixed + i, dv, true);
  }
};

template <class T>
void attend_many(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const at::Tensor& mask, double scale, at::Tensor& out) {
  const int64_t batch = query.size(0), heads = key.size(1), asked = query.size(2);
  const int64_t group = query.size(1) / heads;
  const int64_t step = std::max<int64_t>(kHeight, kAsked / group);
  const int64_t steps = (asked + step - 1) / step;
  const Sight sight = sight_of(mask, batch, asked, key.size(2));
  at::parallel_for(0, batch * heads * steps, 1, [&](int64_t task, int64_t last) {
    for (; task < last; task++) {
      // Later queries see more: the first and the last by turns, so that threads have alike.
      const int64_t at = task % (batch * heads), turn = task / (batch * heads);
      const int64_t piece = turn % 2 ? steps - 1 - turn / 2 : turn / 2;
      const int64_t start = piece * step, num = std::min(step, asked - start);
      Asked<T>{query, key, value, mask, sight, float(scale), at / heads, at % heads, start,
               num}(out.data_ptr<T>());
    }
  });
}

}  // namespace
