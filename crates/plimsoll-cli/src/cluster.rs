//! The devices of a cluster, as `--cluster` names them.

use std::num::NonZeroUsize;
use std::str::FromStr;

/// So many devices of one kind.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// How many: a rank each.
    pub n_ranks: NonZeroUsize,
    /// The model, as `--as` names it, or `cpu`.
    pub model: String,
}

impl FromStr for Cluster {
    type Err = String;

    fn from_str(text: &str) -> Result<Cluster, String> {
        let parts = text.split_once('x').and_then(|(n, model)| Some((n.parse().ok()?, model)));
        match parts {
            Some((n_ranks, model)) if !model.is_empty() => Ok(Cluster { n_ranks, model: model.to_owned() }),
            _ => Err("write a number of devices and their model, such as 64xh100, or 8xcpu".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_a_number_and_a_model() {
        let cluster: Cluster = "64xh100".parse().expect("it is one");
        assert_eq!((cluster.n_ranks.get(), cluster.model.as_str()), (64, "h100"));
        for text in ["", "64", "x", "64x", "0xh100", "hxh100", "-1xcpu"] {
            assert!(text.parse::<Cluster>().is_err(), "{text}");
        }
    }
}
