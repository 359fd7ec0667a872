// A message that is summed or rounded: T and S are the types of its elements and of those that it is made from, and VALUE says
// what becomes of both.

KERNEL ENTRY(T* __restrict__ to, const S* __restrict__ from, u64 n) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) to[at] = VALUE;
}
