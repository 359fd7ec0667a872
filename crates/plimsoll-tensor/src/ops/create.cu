// Random numbers, element by element: functions that elementwise kernels call. The words are those of the host, and so are
// evenly distributed numbers and whole ones; what goes through a logarithm may differ in the last place.

// A number in [0, 1) of the type of the first argument, every multiple of 2^-24 (2^-53) equally likely. One of 64 bits
// takes two words.
DEVICE float unit(float, u64 seed, u64 draw, u64 element) {
    return (float)(random_word(seed, draw, element) >> 8) * (1.0f / (1u << 24));
}
DEVICE u64 random_bits(u64 seed, u64 draw, u64 element) {
    Words words = philox(seed, draw, element / 2);
    return element % 2 ? (u64)words.at[3] << 32 | words.at[2] : (u64)words.at[1] << 32 | words.at[0];
}
DEVICE double unit(double, u64 seed, u64 draw, u64 element) {
    return (double)(random_bits(seed, draw, element) >> 11) * (1.0 / (1ull << 53));
}

// The cosine, or the sine, of that part of a whole turn.
DEVICE float of_turn(float part, bool is_sine) {
    u32 steps = (u32)(part * (1u << 24)), quarter = (steps + (1u << 21)) >> 22;
    float r = (float)((i32)steps - (i32)(quarter << 22)) * (float)(6.283185307179586 / (1u << 24)), z = r * r;
    bool takes_sine = is_sine == (quarter % 2 == 0), is_negative = (is_sine ? quarter : quarter + 1) & 2;
    float sine = r + r * z * (-0.16666667f + z * (0.008333329f + z * (-0.00019839335f + z * 2.7183117e-6f)));
    float cosine =
        1.0f - 0.5f * z + z * z * (0.041666668f + z * (-0.0013888884f + z * (2.479952e-5f + z * -2.7210238e-7f)));
    float result = takes_sine ? sine : cosine;
    return is_negative ? -result : result;
}
DEVICE double of_turn(double part, bool is_sine) {
    double angle = 6.283185307179586 * part;
    return is_sine ? ::sin(angle) : ::cos(angle);
}

// Box and Muller's transform: neighbours share a radius, the first takes the cosine and the second the sine.
template <class T> DEVICE T normal(u64 seed, u64 draw, u64 element, T mean, T deviation) {
    u64 first = element / 2 * 2;
    T radius = m::sqrt((T)-2 * m::log((T)1 - unit((T)0, seed, draw, first))) * deviation;
    return mean + radius * of_turn(unit((T)0, seed, draw, first + 1), element % 2);
}

// A polynomial over another, both of degree seven, lowest power first.
DEVICE double ratio(double x, const double* above, const double* below) {
    double p = 0.0, q = 0.0;
    for (int power = 7; power >= 0; power--) {
        p = p * x + above[power];
        q = q * x + below[power];
    }
    return p / q;
}

// A normal number of mean zero and deviation one, within two deviations: the inverse of the distribution, by the rational
// functions of Wichura's algorithm AS 241, at a number evenly distributed between the tails.
template <class T> DEVICE double truncated(u64 seed, u64 draw, u64 element) {
    const double middle_above[8] = {3.3871328727963665,  133.14166789178438, 1971.5909503065513, 13731.69376550946,
                                    45921.95393154987,   67265.7709270087,   33430.57558358813,  2509.0809287301227};
    const double middle_below[8] = {1.0,                 42.31333070160091,  687.1870074920579,  5394.196021424751,
                                    21213.794301586597,  39307.89580009271,  28729.085735721943, 5226.495278852854};
    const double tail_above[8] = {1.4234371107496835,  4.630337846156546,  5.769497221460691,    3.6478483247632045,
                                  1.2704582524523684,  0.2417807251774506, 0.022723844989269184, 0.0007745450142783414};
    const double tail_below[8] = {1.0,                 2.053191626637759,    1.6763848301838038,    0.6897673349851,
                                  0.14810397642748008, 0.015198666563616457, 0.0005475938084995345, 1.0507500716444169e-9};
    double q = (2.0 * (double)unit((T)0, seed, draw, element) - 1.0) * 0.4772498680518208;
    double deviations = ::fabs(q) <= 0.425
        ? q * ratio(0.425 * 0.425 - q * q, middle_above, middle_below)
        : ::copysign(ratio(::sqrt(-::log(0.5 - ::fabs(q))) - 1.6, tail_above, tail_below), q);
    return deviations > 2.0 ? 2.0 : deviations < -2.0 ? -2.0 : deviations;
}

// A whole number from `low` on, below `low + span`.
DEVICE i64 whole(u64 seed, u64 draw, u64 element, u64 low, u64 span) {
    return (i64)(low + __umul64hi(random_bits(seed, draw, element), span));
}
