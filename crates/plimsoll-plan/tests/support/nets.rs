//! The networks that the tests decide about.

use super::Net;

pub const MIB: u64 = 1 << 20;

/// A chain of blocks: a product, an activation, and a residual sum that saves nothing.
pub fn chain(n_blocks: usize) -> Net {
    let mut net = Net { fixed: 8 * MIB, ..Net::default() };
    let mut x = net.product(&[], MIB, 1_000);
    for _ in 0..n_blocks {
        let wide = net.product(&[x], 4 * MIB, 100_000);
        let active = net.activation(wide, 4_000);
        let narrow = net.product(&[active], MIB, 100_000);
        x = net.op(&[x, narrow], MIB, 1_000, Vec::new());
    }
    net.product(&[x], MIB, 10_000);
    net
}

/// A U-Net: values of the way down are read again on the way up.
pub fn u_net(depth: usize) -> Net {
    let mut net = Net { fixed: 4 * MIB, ..Net::default() };
    let mut x = net.product(&[], 8 * MIB, 10_000);
    let mut skips = Vec::new();
    for level in 0..depth {
        x = net.product(&[x], (8 * MIB) >> level, 200_000);
        x = net.activation(x, 5_000);
        skips.push(x);
        x = net.product(&[x], (4 * MIB) >> level, 50_000);
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        let up = net.product(&[x], (8 * MIB) >> level, 50_000);
        x = net.product(&[up, skip], (8 * MIB) >> level, 200_000);
        x = net.activation(x, 5_000);
    }
    net
}

/// A DenseNet: every op reads all that came before it in its block.
pub fn dense_net(n: usize) -> Net {
    let mut net = Net { fixed: MIB, ..Net::default() };
    let mut all = vec![net.product(&[], 2 * MIB, 10_000)];
    for _ in 0..n {
        all.push(net.product(&all.clone(), MIB, 80_000));
    }
    net
}

/// A tree: pairs are joined until one is left.
pub fn tree(n_leaves: usize) -> Net {
    let mut net = Net { fixed: MIB, ..Net::default() };
    let mut row: Vec<u32> = (0..n_leaves).map(|_| net.product(&[], MIB, 20_000)).collect();
    while row.len() > 1 {
        row = row.chunks(2).map(|pair| net.product(pair, MIB, 60_000)).collect();
    }
    net
}

/// A network drawn by a simple generator.
pub fn drawn(seed: u64) -> Net {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut net = Net { fixed: draw(64) * 65_536, ..Net::default() };
    net.product(&[], 65_536, 1_000);
    for at in 1..4 + draw(40) as u32 {
        let mut inputs: Vec<u32> = (0..1 + draw(3)).map(|_| draw(at.into()) as u32).collect();
        inputs.sort_unstable();
        inputs.dedup();
        let saves = inputs.iter().copied().chain([at]).filter(|_| draw(2) == 0).collect();
        net.op(&inputs, (1 + draw(40)) * 32_768, 500 + draw(100_000), saves);
    }
    net
}

pub fn named() -> Vec<(String, Net)> {
    let mut nets = vec![
        ("chain".to_owned(), chain(12)),
        ("U-Net".to_owned(), u_net(4)),
        ("DenseNet".to_owned(), dense_net(12)),
        ("tree".to_owned(), tree(32)),
    ];
    nets.extend((0..60).map(|seed| (format!("drawn {seed}"), drawn(seed))));
    nets
}
