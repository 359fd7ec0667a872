//! The shipped digits: 1,797 images of 8×8 grey values from 0 to 16.
//!
//! 360 of them are held out by a stratified shuffle with a seed that never changes, so that accuracies of different
//! runs, seeds and versions speak of the same images.

use std::ops::Range;

use plimsoll::data::Dataset;
use plimsoll::{DType, Owner, Result, Tensor, with_owner};

use super::Data;

static SHIPPED: &[u8] = include_bytes!("../../data/digits.bin");

/// The images that there are, and those of them that are held out.
const N_IMAGES: usize = 1797;
const N_HELD_OUT: usize = 360;
/// The numbers of an image; in the file its digit follows.
const PIXELS: usize = 64;
const ROW: usize = PIXELS + 1;
/// The seed of the split.
const SPLIT_SEED: u64 = 8;

/// The digits: bytes of 64 grey values, and which digit they show.
pub fn digits() -> Result<Data> {
    let (train, held_out) = split(SHIPPED);
    let part = |chosen: &[u16]| {
        let (images, labels) = (pick(chosen, 0..PIXELS)?, pick(chosen, PIXELS..ROW)?);
        Dataset::from_tensor_slices((images, labels.reshape([chosen.len()])?))
    };
    Ok(Data::new(part(&train)?, "shipped").held_out(part(&held_out)?))
}

/// Some columns of some rows, one after the other.
fn pick(chosen: &[u16], columns: Range<usize>) -> Result<Tensor> {
    with_owner(Owner::Data, || {
        Tensor::from_bytes([chosen.len(), columns.len()], DType::U8, |to| {
            for (to, &row) in to.chunks_exact_mut(columns.len()).zip(chosen) {
                to.copy_from_slice(&SHIPPED[usize::from(row) * ROW..][..ROW][columns.clone()]);
            }
            Ok(())
        })
    })
}

/// The rows to train on, and those held out: of each class as near the same part as whole numbers allow.
fn split(rows: &[u8]) -> (Vec<u16>, Vec<u16>) {
    let mut of_class: [Vec<u16>; 10] = Default::default();
    for (number, row) in rows.chunks_exact(ROW).enumerate() {
        of_class[usize::from(row[PIXELS])].push(number as u16);
    }
    let mut random = SplitMix(SPLIT_SEED);
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    let mut seen = 0;
    for rows in &mut of_class {
        random.shuffle(rows);
        seen += rows.len();
        // So many are held out of all classes up to this one.
        let n = seen * N_HELD_OUT / N_IMAGES - held_out.len();
        held_out.extend_from_slice(&rows[..n]);
        train.extend_from_slice(&rows[n..]);
    }
    (train, held_out)
}

/// A small generator that will never change (Vigna's splitmix64).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn shuffle(&mut self, rows: &mut [u16]) {
        for last in (1..rows.len()).rev() {
            rows.swap(last, (self.next() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_is_in_one_part_and_classes_are_in_proportion() {
        let (train, held_out) = split(SHIPPED);
        assert_eq!((train.len(), held_out.len()), (1437, 360));
        let mut all: Vec<u16> = train.iter().chain(&held_out).copied().collect();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..1797));
        for digit in 0..10 {
            let shows = |row: &&u16| SHIPPED[usize::from(**row) * ROW + PIXELS] == digit;
            let (kept, out) = (train.iter().filter(shows).count(), held_out.iter().filter(shows).count());
            let fair = (kept + out) as f64 * 360.0 / 1797.0;
            assert!((out as f64 - fair).abs() <= 1.0, "digit {digit}: {out} of {}", kept + out);
        }
    }

    #[test]
    fn the_images_are_those_of_uci() {
        assert_eq!(SHIPPED.len(), N_IMAGES * ROW);
        assert_eq!(SHIPPED[..16], [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0]);
        assert!(SHIPPED.chunks_exact(ROW).all(|row| row[..PIXELS].iter().all(|&grey| grey <= 16)));
    }
}
