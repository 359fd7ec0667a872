// For each index its key. Defined by cuda.rs: ENTRY, I (the type of the indices), Key, RANK.

KERNEL __launch_bounds__(256) ENTRY(Key* keys, const I* indices, const Keys what, u8* cell, u64 call) {
    u64 element = (u64)blockIdx.x * 256 + threadIdx.x;
    if (element >= what.n) return;
    keys[element] = (Key)key_of(indices, what, element, (Note*)cell, call, true);
}
