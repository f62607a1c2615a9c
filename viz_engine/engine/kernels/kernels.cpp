// Kernels for a few tokens, as decode makes them: tokens times a matrix of weights, and one query
// with the rows of the cache; and the magnitudes of rows. Each reads what it is given once and in
// its order, sums up in float32 and rounds once. Who adds what does not depend on the number of
// threads.
//
// build.py compiles it, and checks what it gives. Try it: tests/engine/kernels/test_build.py

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "simd.h"
#include "gemm.h"

namespace {

constexpr int kLine = 64;      // bytes that memory gives at once
constexpr int kAhead = 4096;   // bytes: a row is too short for the processor to see where it goes
constexpr int kBlock = 32;     // weights of a row that a loop takes
constexpr int kChunk = 256;    // rows of the cache that a task reads
constexpr int kGrain = 32768;  // weights that are worth a thread

// Tokens: more are multiplied in tiles, which pad them to a multiple of kHeight. Measured on one
// thread, AVX2 and AVX-512, one by one against tiles: in bfloat16 6.7 against 6.8 ms for 8 tokens,
// 8.7 against 7.0 for 9; in float32, whose weights take twice as long to come, a tie at 12.
template <class T>
constexpr int kFew = sizeof(T) == 2 ? 8 : 12;

template <class T>
inline void fetch(const T* at, int64_t count, int ahead = 0) {
  const char* bytes = reinterpret_cast<const char*>(at) + ahead;
  for (int64_t i = 0; i < count * int64_t(sizeof(T)); i += kLine) __builtin_prefetch(bytes + i);
}

// --- tokens with a matrix -------------------------------------------------------------------

// R rows of weights [R, K] with M tokens x [M, K]: y[m * n + r]. K is a multiple of kBlock. Of each
// number several sums are kept, since an addition takes a while: as many for two rows of weights
// as for one, since the number of threads decides which are paired.
template <class T, int R, int M, bool kAlone>
inline void few(const T* w, const float* x, const T* bias, int64_t width, T* y, int64_t n) {
  constexpr int kSums = std::max(1, (kAlone ? 4 : 2) / M);
  Lanes sums[R][M][kSums] = {};
  for (int64_t k = 0; k < width; k += kBlock) {
    for (int r = 0; r < R; r++) fetch(w + r * width + k, kBlock, kAhead);
#pragma GCC unroll 4
    for (int u = 0; u < kBlock / kLanes; u++) {
      Lanes weights[R];
#pragma GCC unroll 2
      for (int r = 0; r < R; r++) weights[r] = load(w + r * width + k + u * kLanes);
#pragma GCC unroll 4
      for (int m = 0; m < M; m++) {
        Lanes row = load(x + m * width + k + u * kLanes);
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) sums[r][m][u % kSums] += weights[r] * row;
      }
    }
  }
  for (int r = 0; r < R; r++) {
    for (int m = 0; m < M; m++) {
      for (int u = 1; u < kSums; u++) sums[r][m][0] += sums[r][m][u];
      y[m * n + r] = T(sum(sums[r][m][0]) + (bias ? wide(bias[r]) : 0.0f));
    }
  }
}

template <class T, int R>
void several(int64_t m, const T* w, const float* x, const T* bias, int64_t k, T* y, int64_t n) {
  for (; m >= 4; m -= 4, x += 4 * k, y += 4 * n) few<T, R, 4, false>(w, x, bias, k, y, n);
  for (; m >= 2; m -= 2, x += 2 * k, y += 2 * n) few<T, R, 2, false>(w, x, bias, k, y, n);
  if (m) few<T, R, 1, false>(w, x, bias, k, y, n);
}

template <class T>
void linear_few(const T* x, const T* w, const T* bias, T* y, int64_t m, int64_t n, int64_t k) {
  std::vector<float> rows(m * k);
  for (int64_t i = 0; i < m * k; i++) rows[i] = wide(x[i]);
  at::parallel_for(0, n, std::max<int64_t>(1, kGrain / k), [&](int64_t i, int64_t stop) {
    // Two rows of weights share what is loaded of several x; for one or two memory is the limit,
    // and a single stream the fastest.
    for (int64_t num; i < stop; i += num) {
      const T *from = w + i * k, *added = bias ? bias + i : nullptr;
      num = m > 2 && i + 1 < stop ? 2 : 1;
      if (m == 1)
        few<T, 1, 1, true>(from, rows.data(), added, k, y + i, n);
      else if (m == 2)
        few<T, 1, 2, true>(from, rows.data(), added, k, y + i, n);
      else if (num == 1)
        several<T, 1>(m, from, rows.data(), added, k, y + i, n);
      else
        several<T, 2>(m, from, rows.data(), added, k, y + i, n);
    }
  });
}

template <class T>
void linear_of(const at::Tensor& x, const at::Tensor& w, const T* bias, at::Tensor& y) {
  int64_t n = w.size(0), k = w.size(1);
  const int64_t m = x.numel() / k;
  auto product = m > kFew<T> ? linear_many<T> : linear_few<T>;
  product(x.const_data_ptr<T>(), w.const_data_ptr<T>(), bias, y.data_ptr<T>(), m, n, k);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(w.dim() == 2 && w.is_contiguous() && w.size(1) % kBlock == 0, "weight");
  TORCH_CHECK(x.dim() > 0 && x.size(-1) == w.size(1) && x.scalar_type() == w.scalar_type(), "x");
  TORCH_CHECK(!bias || (bias->is_contiguous() && bias->numel() == w.size(0) &&
                        bias->scalar_type() == w.scalar_type()), "bias");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.size(0);
  at::Tensor rows = x.contiguous(), y = at::empty(shape, x.options());
  if (w.scalar_type() == at::kBFloat16)
    linear_of(rows, w, bias ? bias->const_data_ptr<c10::BFloat16>() : nullptr, y);
  else
    linear_of(rows, w, bias ? bias->const_data_ptr<float>() : nullptr, y);
  return y;
}

// --- one query with the rows of the cache ---------------------------------------------------

// Some rows of K and V: of one KV head, from a column on.
template <class T>
struct Rows {
  const T *keys, *values;
  const bool* seen;  // where there are pads
  int64_t num, key_stride, value_stride, key_dim, value_dim;
};

// Scores [G, kChunk] of G queries [G, D]. What `mix` will read is fetched meanwhile.
template <class T, int G>
inline void score(const Rows<T>& rows, const float* queries, float* scores) {
  for (int64_t s = 0; s < rows.num; s++) {
    const T* key = rows.keys + s * rows.key_stride;
    fetch(key, rows.key_dim, kAhead);
    fetch(rows.values + s * rows.value_stride, rows.value_dim);
    Lanes sums[G][2] = {};
    for (int64_t i = 0; i < rows.key_dim; i += 2 * kLanes) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; u++) {
        Lanes part = load(key + i + u * kLanes);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++)
          sums[g][u] += part * load(queries + g * rows.key_dim + i + u * kLanes);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) scores[g * kChunk + s] = sum(sums[g][0] + sums[g][1]);
  }
}

// out [G, D]: the values, mixed by shares [G, kChunk].
template <class T, int G>
inline void mix(const Rows<T>& rows, const float* shares, float* out) {
  for (int64_t i = 0; i < rows.value_dim; i += 2 * kLanes) {
    Lanes sums[G][2] = {};
    for (int64_t s = 0; s < rows.num; s++) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; u++) {
        Lanes part = load(rows.values + s * rows.value_stride + i + u * kLanes);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sums[g][u] += part * shares[g * kChunk + s];
      }
    }
    for (int g = 0; g < G; g++)
      __builtin_memcpy(out + g * rows.value_dim + i, sums[g], sizeof sums[g]);
  }
}

// G queries with a chunk: the mixed values [G, D], the largest score [G], the sum of shares [G].
template <class T, int G>
void attend_chunk(const Rows<T>& rows, const float* queries, float* out, float* tops, float* sums) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  float scores[G * kChunk];
  score<T, G>(rows, queries, scores);
  int64_t stop = (rows.num + kLanes - 1) / kLanes * kLanes;
  for (int g = 0; g < G; g++) {
    float* at = scores + g * kChunk;
    std::fill(at + rows.num, at + stop, kNever);
    if (rows.seen)
      for (int64_t s = 0; s < rows.num; s++) at[s] = rows.seen[s] ? at[s] : kNever;
    Lanes most = Lanes{} + kLowest, all = {};
    for (int64_t s = 0; s < stop; s += kLanes) most = larger(most, load(at + s));
    float top = kLowest;
    for (int i = 0; i < kLanes; i++) top = std::max(top, most[i]);
    for (int64_t s = 0; s < stop; s += kLanes) {
      Lanes share = exp_of(load(at + s) - top);
      all += share;
      __builtin_memcpy(at + s, &share, sizeof share);
    }
    tops[g] = top;
    sums[g] = sum(all);
  }
  mix<T, G>(rows, scores, out);
}

template <class T>
void attend_rows(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const bool* seen, double scale, at::Tensor& out) {
  const int64_t heads = key.size(1), columns = key.size(2);
  const int64_t d = key.size(3), dv = value.size(3), group = query.size(1) / heads;
  const int64_t chunks = (columns + kChunk - 1) / kChunk, part = group * (dv + 2);
  const T* asked = query.const_data_ptr<T>();
  std::vector<float> queries(query.numel());
  for (size_t i = 0; i < queries.size(); i++) queries[i] = wide(asked[i]) * float(scale);
  std::vector<float> parts(key.size(0) * heads * chunks * part);
  at::parallel_for(0, key.size(0) * heads * chunks, 1, [&](int64_t task, int64_t last) {
    for (; task < last; task++) {
      const int64_t at = task / chunks, first = task % chunks * kChunk;
      const int64_t b = at / heads, h = at % heads;
      auto of = [&](const at::Tensor& t) {
        return t.const_data_ptr<T>() + b * t.stride(0) + h * t.stride(1) + first * t.stride(2);
      };
      const bool* seen_at = seen ? seen + b * columns + first : nullptr;
      const int64_t num_rows = std::min<int64_t>(kChunk, columns - first);
      Rows<T> rows{of(key), of(value), seen_at, num_rows, key.stride(2), value.stride(2), d, dv};
      float* mixed = parts.data() + task * part;
      for (int64_t i = 0, num; i < group; i += num) {
        num = std::min<int64_t>(group - i, 4);
        auto chunk = num == 4   ? attend_chunk<T, 4>
                     : num == 3 ? attend_chunk<T, 3>
                     : num == 2 ? attend_chunk<T, 2>
                                : attend_chunk<T, 1>;
        chunk(rows, queries.data() + (at * group + i) * d, mixed + i * dv, mixed + group * dv + i,
              mixed + group * (dv + 1) + i);
      }
    }
  });
  T* to = out.data_ptr<T>();
  std::vector<float> row(dv);
  for (int64_t at = 0; at < key.size(0) * heads; at++) {
    for (int64_t i = 0; i < group; i++, to += dv) {
      const float* of = parts.data() + at * chunks * part;
      const float *tops = of + group * dv + i, *sums = tops + group;
      float top = tops[0], total = 0;
      for (int64_t c = 1; c < chunks; c++) top = std::max(top, tops[c * part]);
      std::fill(row.begin(), row.end(), 0.0f);
      for (int64_t c = 0; c < chunks; c++) {
        const float share = std::exp(tops[c * part] - top);
        total += share * sums[c * part];
        for (int64_t j = 0; j < dv; j++) row[j] += share * of[c * part + i * dv + j];
      }
      for (int64_t j = 0; j < dv; j++) to[j] = T(row[j] / total);
    }
  }
}

// query [B, Hq, T, D], key [B, Hkv, S, D], value [B, Hkv, S, Dv], mask bool [B, 1, T, S]; without
// one the last query sees all: [B, T, Hq, Dv].
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::optional<at::Tensor>& mask, double scale) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, "rows");
  TORCH_CHECK(query.size(0) == key.size(0) && query.size(1) % key.size(1) == 0 &&
              query.size(3) == key.size(3) && query.size(2) <= key.size(2), "query");
  TORCH_CHECK(key.sizes().slice(0, 3) == value.sizes().slice(0, 3), "value");
  TORCH_CHECK(key.size(3) % (2 * kLanes) == 0 && value.size(3) % (2 * kLanes) == 0 &&
              key.size(3) <= kDepth, "width");
  TORCH_CHECK(key.stride(3) == 1 && value.stride(3) == 1, "order");
  TORCH_CHECK(query.scalar_type() == key.scalar_type() && key.scalar_type() == value.scalar_type(),
              "types");
  TORCH_CHECK(!mask || (mask->scalar_type() == at::kBool && mask->dim() == 4), "mask");
  const int64_t batch = query.size(0), asked = query.size(2), columns = key.size(2);
  at::Tensor out = at::empty({batch, asked, query.size(1), value.size(3)}, query.options());
  at::Tensor seen;
  if (mask) seen = mask->expand({batch, 1, asked, columns});
  if (mask && seen.stride(3) != 1) seen = seen.contiguous();
  const bool half = key.scalar_type() == at::kBFloat16;
  if (asked > 1) {
    auto attend = half ? attend_many<c10::BFloat16> : attend_many<float>;
    attend(query.stride(3) == 1 ? query : query.contiguous(), key, value, seen, scale, out);
    return out;
  }
  at::Tensor one = query.contiguous();
  if (mask) seen = seen.contiguous();
  const bool* at = mask ? seen.const_data_ptr<bool>() : nullptr;
  auto attend = half ? attend_rows<c10::BFloat16> : attend_rows<float>;
  attend(one, key, value, at, scale, out);
  return out;
}

// --- norms ----------------------------------------------------------------------------------

// Each row over the root of its mean square, rounded, times the weight, rounded: as Llama's.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  using T = c10::BFloat16;
  const int64_t width = weight.numel();
  TORCH_CHECK(weight.dim() == 1 && weight.is_contiguous() && width % (2 * kLanes) == 0, "weight");
  TORCH_CHECK(x.dim() > 0 && x.size(-1) == width, "x");
  const at::Tensor rows = x.contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  const T *from = rows.const_data_ptr<T>(), *by = weight.const_data_ptr<T>();
  T* to = y.data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kGrain / width);
  at::parallel_for(0, x.numel() / width, grain, [&](int64_t row, int64_t last) {
    for (; row < last; row++) {
      const T* at = from + row * width;
      Lanes squares[2] = {};
      for (int64_t i = 0; i < width; i += 2 * kLanes)
        for (int u = 0; u < 2; u++) {
          const Lanes part = load(at + i + u * kLanes);
          squares[u] += part * part;
        }
      const float mean = sum(squares[0] + squares[1]) / float(width);
      const float scale = 1.0f / std::sqrt(mean + float(eps));
      for (int64_t i = 0; i < width; i++)
        to[row * width + i] = T(wide(by[i]) * wide(T(wide(at[i]) * scale)));
    }
  });
  return y;
}

// --- magnitudes -----------------------------------------------------------------------------

// Levels of the rows [first, stop) of keys and values [L, B, H, columns, width]: uint8
// [2, B, rows, L * H], as cache.py's _levels makes them.
template <class T>
void levels_of(const at::Tensor& rows, int64_t first, int64_t stop, uint8_t* out) {
  const int64_t batch = rows.size(1), heads = rows.size(2), width = rows.size(4);
  const int64_t places = rows.size(0) * heads, num = stop - first;
  const int64_t grain = std::max<int64_t>(1, kGrain / (num * width));
  at::parallel_for(0, places * batch, grain, [&](int64_t i, int64_t last) {
    for (; i < last; i++) {
      const int64_t b = i / places, place = i % places;
      const T* at = rows.const_data_ptr<T>() + place / heads * rows.stride(0) +
                    b * rows.stride(1) + place % heads * rows.stride(2) + first * rows.stride(3);
      for (int64_t s = 0; s < num; s++, at += rows.stride(3)) {
        Lanes squares = {};
        for (int64_t j = 0; j < width; j += kLanes) squares += load(at + j) * load(at + j);
        const float norm = std::sqrt(sum(squares));
        const float level = std::nearbyint(128 + 12 * std::log2(std::max(norm, 1e-12f)));
        const float held = std::clamp(level, 1.0f, 255.0f);
        out[(b * num + s) * places + place] = norm > 0 ? uint8_t(held) : 0;
      }
    }
  });
}

at::Tensor levels(const at::Tensor& keys, const at::Tensor& values, int64_t first, int64_t stop) {
  TORCH_CHECK(keys.dim() == 5 && keys.sizes().slice(0, 4) == values.sizes().slice(0, 4), "rows");
  TORCH_CHECK(0 <= first && first < stop && stop <= keys.size(3), "columns");
  TORCH_CHECK(keys.scalar_type() == values.scalar_type(), "types");
  const int64_t places = keys.size(0) * keys.size(2);
  at::Tensor out = at::empty({2, keys.size(1), stop - first, places}, at::kByte);
  uint8_t* to = out.data_ptr<uint8_t>();
  for (const at::Tensor& rows : {keys, values}) {
    TORCH_CHECK(rows.stride(4) == 1 && rows.size(4) % kLanes == 0, "width");
    if (rows.scalar_type() == at::kBFloat16)
      levels_of<c10::BFloat16>(rows, first, stop, to);
    else
      levels_of<float>(rows, first, stop, to);
    to += out.numel() / 2;
  }
  return out;
}

}  // namespace

TORCH_LIBRARY(second_token, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  library.def(
      "attend(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> Tensor");
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def("levels(Tensor keys, Tensor values, int first, int stop) -> Tensor");
}

TORCH_LIBRARY_IMPL(second_token, CPU, library) {
  library.impl("linear", &linear);
  library.impl("attend", &attend);
  library.impl("rms_norm", &rms_norm);
  library.impl("levels", &levels);
}
