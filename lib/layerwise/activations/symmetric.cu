// Eigenvalues of many symmetric matrices, one block of threads a matrix, all in double precision.
//
// `tridiagonalise` is Householder's reduction (Golub and Van Loan, Matrix Computations, 8.3.1). The
// update of one step and the product of the next share one walk over the matrix, which stays in
// shared memory where it fits. `bisect` finds each eigenvalue of the tridiagonal matrix by counting
// signs of its Sturm sequence (ibid., 8.4.1). Neither needs another matrix, so a batch takes no more
// memory than itself. The reduction begins with the first row and never mixes it into the others: the
// tridiagonal matrix without its first row and column has the eigenvalues of the matrix without them.

__device__ double warp_sum(double value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// matrices: count x n x n, overwritten unless in_shared. diagonal, off: count x n.
// Shared memory: (n * n if in_shared) + (warps + 4) * n doubles.
extern "C" __global__ void tridiagonalise(
    double* matrices, double* diagonal, double* off, int n, int in_shared) {
  extern __shared__ double shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const long long first = blockIdx.x;
  double* own = matrices + first * n * n;
  double* d = diagonal + first * n;
  double* e = off + first * n;
  double* v = shared;  // A - v w' - w v' is the matrix after the steps so far
  double* w = v + n;
  double* u = w + n;  // of this step's reflection I - tau u u'
  double* p = u + n;
  double* partial = p + n;  // each warp's share of the product with u
  double* A = in_shared ? partial + warps * n : own;
  if (in_shared)
    for (int i = threadIdx.x; i < n * n; i += blockDim.x) A[i] = own[i];
  for (int j = threadIdx.x; j < n; j += blockDim.x) v[j] = w[j] = 0;
  __syncthreads();

  for (int k = 0; k < n; k++) {
    const double* row = A + k * n;
    const double vk = v[k], wk = w[k];
    if (threadIdx.x == 0) d[k] = row[k] - 2 * vk * wk;
    if (k == n - 1) break;
    // Every warp finds the reflection by itself: cheaper than telling the others.
    const double alpha = row[k + 1] - vk * w[k + 1] - wk * v[k + 1];
    double rest = 0;
    for (int j = k + 2 + lane; j < n; j += 32) {
      const double x = row[j] - vk * w[j] - wk * v[j];
      rest += x * x;
    }
    rest = warp_sum(rest);
    const double beta = rest == 0 ? alpha : -copysign(sqrt(alpha * alpha + rest), alpha);
    const double tau = rest == 0 ? 0 : (beta - alpha) / beta;
    if (warp == 0) {
      const double scale = rest == 0 ? 0 : 1 / (alpha - beta);
      for (int j = k + 1 + lane; j < n; j += 32)
        u[j] = j == k + 1 ? 1 : scale * (row[j] - vk * w[j] - wk * v[j]);
    }
    if (threadIdx.x == 0) e[k] = beta;
    __syncthreads();

    for (int start = k + 1; start < n; start += 32 * COLUMNS) {
      double vj[COLUMNS], wj[COLUMNS], sum[COLUMNS];
      for (int c = 0; c < COLUMNS; c++) {
        const int j = start + lane + 32 * c;
        vj[c] = j < n ? v[j] : 0;
        wj[c] = j < n ? w[j] : 0;
        sum[c] = 0;
      }
      for (int i = k + 1 + warp; i < n; i += warps) {
        const double vi = v[i], wi = w[i], ui = u[i];
        double* line = A + i * n + start + lane;
        for (int c = 0; c < COLUMNS; c++)
          if (start + lane + 32 * c < n) {
            const double a = line[32 * c] - vi * wj[c] - wi * vj[c];
            line[32 * c] = a;
            sum[c] += a * ui;
          }
      }
      for (int c = 0; c < COLUMNS; c++) {
        const int j = start + lane + 32 * c;
        if (j < n) partial[warp * n + j] = sum[c];
      }
    }
    __syncthreads();

    for (int j = k + 1 + threadIdx.x; j < n; j += blockDim.x) {
      double sum = 0;
      for (int q = 0; q < warps; q++) sum += partial[q * n + j];
      p[j] = tau * sum;
    }
    __syncthreads();

    double dot = 0;
    for (int j = k + 1 + lane; j < n; j += 32) dot += p[j] * u[j];
    const double half = tau * warp_sum(dot) / 2;
    for (int j = k + 1 + threadIdx.x; j < n; j += blockDim.x) {
      v[j] = u[j];
      w[j] = p[j] - half * u[j];
    }
    __syncthreads();
  }
}

// Eigenvalues, ascending, to the rounding of the largest. diagonal, off: count x stride, of which n
// are used. values: count x n. Shared memory: 2 * n doubles.
extern "C" __global__ void bisect(
    const double* diagonal, const double* off, double* values, int n, int stride) {
  extern __shared__ double shared[];
  double* d = shared;
  double* squared = d + n;
  const long long first = blockIdx.x;
  const double* e = off + first * stride;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    d[i] = diagonal[first * stride + i];
    squared[i] = i < n - 1 ? e[i] * e[i] : 0;
  }
  __syncthreads();
  double low = d[0], high = d[0], largest = 0;
  for (int i = 0; i < n; i++) {  // Gershgorin
    const double radius = sqrt(squared[i]) + (i > 0 ? sqrt(squared[i - 1]) : 0);
    low = fmin(low, d[i] - radius);
    high = fmax(high, d[i] + radius);
    largest = fmax(largest, squared[i]);
  }
  const double size = fmax(fabs(low), fabs(high));
  const double smallest = fmax(largest, 1.0) * 2.2250738585072014e-308;  // as LAPACK's dstebz
  for (int index = threadIdx.x; index < n; index += blockDim.x) {
    double below = low - 1e-15 * size, above = high + 1e-15 * size;
    for (int halving = 0; halving < 56; halving++) {
      const double middle = below + (above - below) / 2;
      double q = 1;
      int smaller = 0;
      for (int i = 0; i < n; i++) {
        q = d[i] - middle - (i > 0 ? squared[i - 1] / q : 0);
        if (fabs(q) < smallest) q = -smallest;
        smaller += q < 0;
      }
      if (smaller > index)
        above = middle;
      else
        below = middle;
    }
    values[first * n + index] = below + (above - below) / 2;
  }
}
