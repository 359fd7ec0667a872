//! The figures of the posts' examples.

use plimsoll::prelude::*;

fn requested(device: &Device) -> u64 {
    let stats = device.stats();
    stats.in_use - stats.rounding
}

#[test]
fn post_000_example_1() {
    let device = Device::separate_cpu();
    let _on = device.enter();
    let x = Variable::new(Tensor::randn([1000, 1000]).unwrap()).named("x");
    let y = Variable::new(Tensor::randn([1000, 1000]).unwrap()).named("y");
    let tape = GradientTape::new();
    let (z, loss) = tape.record(|| {
        let z = x.matmul(&y).unwrap();
        let loss = z.sum(..).unwrap();
        (z, loss)
    });
    assert_eq!(requested(&device), 12_000_004);
    assert_eq!(tape.saved().own_bytes(), 0);
    drop(z);
    assert_eq!(requested(&device), 8_000_004);
    println!("{}", tape.saved());
    let [dx, dy] = tape.gradient(&loss, [&x, &y]).unwrap();
    let rows = device.stats();
    println!("{}", device.report());
    println!("{:?}", rows.peak_rows);
    let _ = (dx, dy);
}
