// The kernels of layerwise/activations/symmetric.cu on a CPU: a C++ thread for each of CUDA's.
// Reads "count n threads in_shared" and the matrices, writes their eigenvalues, then those of the
// matrices without their first row and column.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

using std::copysign;
using std::fabs;
using std::fmax;
using std::fmin;

struct Place {
  int x;
};
static thread_local Place threadIdx, blockIdx, blockDim;
static std::vector<double> shared;
static std::unique_ptr<std::barrier<>> everyone;
static std::vector<std::unique_ptr<std::barrier<>>> each_warp;
static std::vector<double> handed;

static void __syncthreads() { everyone->arrive_and_wait(); }

static double __shfl_xor_sync(unsigned, double value, int step) {
  auto& warp = *each_warp[threadIdx.x / 32];
  handed[threadIdx.x] = value;
  warp.arrive_and_wait();
  const double other = handed[threadIdx.x ^ step];
  warp.arrive_and_wait();
  return other;
}

#define __global__
#define __device__
#define __shared__
#define COLUMNS 2
#include "kernels.inc"

template <class Work>
static void launch(int blocks, int threads, size_t doubles, Work work) {
  for (int block = 0; block < blocks; block++) {
    shared.assign(doubles, NAN);  // what was never written must not be read
    handed.assign(threads, 0);
    everyone = std::make_unique<std::barrier<>>(threads);
    each_warp.clear();
    for (int warp = 0; warp < threads / 32; warp++)
      each_warp.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++)
      all.emplace_back([=] {
        threadIdx = {thread}, blockIdx = {block}, blockDim = {threads};
        work();
      });
    for (auto& thread : all) thread.join();
  }
}

int main() {
  int head[4];
  if (fread(head, sizeof(int), 4, stdin) != 4) return 1;
  const auto [count, n, threads, in_shared] = head;
  std::vector<double> matrices(size_t(count) * n * n), d(count * n), e(count * n), values(count * n);
  if (fread(matrices.data(), 8, matrices.size(), stdin) != matrices.size()) return 1;
  const size_t room = (threads / 32 + 4) * n + (in_shared ? n * n : 0);
  double *m = matrices.data(), *dp = d.data(), *ep = e.data(), *vp = values.data();
  launch(count, threads, room, [=, n = n, s = in_shared] { tridiagonalise(m, dp, ep, n, s); });
  for (int first = 0; first < std::min(n, 2); first++) {
    const int size = n - first;
    launch(count, threads, 2 * size, [=, n = n] { bisect(dp + first, ep + first, vp, size, n); });
    fwrite(vp, 8, size_t(count) * size, stdout);
  }
}
