//! The header of a safetensors file: JSON that names tensors, with a number before it that says how long it is.
//!
//! A model has hundreds of variables, and a header a line for each. It is read and written entry by entry, straight from
//! and to the file, because no buffer outside the pool shall grow with a model. A header that is read is distrusted:
//! tensors must lie one after the other without gaps, each as long as its shape and dtype say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};

use plimsoll_tensor::{DType, Shape, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// The key under which the format keeps notes; no tensor can have this name.
pub(super) const NOTES: &str = "__metadata__";
/// The key of our note. There is one, because the format does not order them, and equal contents shall make equal
/// files.
const NOTE: &str = "plimsoll";
/// The length of the number that a file begins with, and what the length of a header is a multiple of.
pub(super) const LEN_BYTES: usize = 8;

/// How the format spells our dtypes.
const DTYPES: [(DType, Dtype); 8] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::U8, Dtype::U8),
    (DType::Bool, Dtype::BOOL),
];

/// A header that has been read and found to be in order.
pub(super) struct Header {
    pub entries: BTreeMap<String, Entry>,
    /// Our note, in a file that was written here.
    pub note: Option<String>,
    /// How many bytes of values there are.
    pub n_bytes: usize,
}

/// One tensor of a file.
pub(super) struct Entry {
    pub shape: Shape,
    /// The dtype, if tensors can have it.
    pub dtype: Result<DType, Dtype>,
    /// Where its bytes begin, counted from the first value.
    pub offset: usize,
}

impl Header {
    /// Reads a header; the error says what is wrong with it.
    pub fn read(json: impl Read) -> Result<Header, serde_json::Error> {
        serde_json::from_reader(json)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names of tensors and what they are")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { entries: BTreeMap::new(), note: None, n_bytes: 0 };
        let mut places = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == NOTES {
                header.note = map.next_value::<BTreeMap<String, String>>()?.remove(NOTE);
                continue;
            }
            let info: TensorInfo = map.next_value()?;
            let entry = entry(&info).map_err(|wrong| A::Error::custom(format!("tensor {name:?} {wrong}")))?;
            places.insert((info.data_offsets, name.clone()));
            if header.entries.insert(name.clone(), entry).is_some() {
                return Err(A::Error::custom(format!("tensor {name:?} is there twice")));
            }
        }
        for ((start, end), name) in &places {
            if *start != header.n_bytes {
                let wrong = format!("tensor {name:?} begins at {start}, and the one before it ends at ");
                return Err(A::Error::custom(format!("{wrong}{}", header.n_bytes)));
            }
            header.n_bytes = *end;
        }
        Ok(header)
    }
}

/// A tensor whose place is as long as its shape and dtype say.
fn entry(info: &TensorInfo) -> Result<Entry, String> {
    let (start, end) = info.data_offsets;
    let n_elems = info.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    let n_bits = n_elems.and_then(|n| n.checked_mul(info.dtype.bitsize()));
    let place = end.checked_sub(start).and_then(|n_bytes| n_bytes.checked_mul(8));
    if n_bits.is_none() || n_bits != place {
        return Err(format!(
            "is {} {:?}, and its place from byte {start} to {end} is not as long as that",
            info.dtype, info.shape
        ));
    }
    let shape = Shape::new(&info.shape).map_err(|error| format!("has a shape that cannot be: {error}"))?;
    let known = DTYPES.iter().find(|(_, theirs)| *theirs == info.dtype);
    Ok(Entry { shape, dtype: known.map(|(ours, _)| *ours).ok_or(info.dtype), offset: start })
}

/// Tensors in the order of their values in a file: wide elements first, so that each lies at a multiple of its
/// elements' size, then by name.
pub(super) type Ordered = BTreeMap<(Reverse<usize>, String), Tensor>;

/// A header that is to be written.
pub(super) struct Draft<'a> {
    pub tensors: &'a Ordered,
    pub note: String,
}

impl Draft<'_> {
    /// Writes the number and the header, filled up with spaces so that the values begin at a multiple of eight.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let mut counted = Counted(0);
        serde_json::to_writer(&mut counted, self)?;
        let len = counted.0.next_multiple_of(LEN_BYTES);
        out.write_all(&(len as u64).to_le_bytes())?;
        serde_json::to_writer(&mut out, self)?;
        out.write_all(&[b' '; LEN_BYTES][..len - counted.0])
    }
}

impl Serialize for Draft<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(NOTES, &BTreeMap::from([(NOTE, &self.note)]))?;
        let mut end = 0;
        for ((_, name), tensor) in self.tensors {
            let known = DTYPES.iter().find(|(ours, _)| *ours == tensor.dtype());
            let Some(&(_, dtype)) = known else { unreachable!("the table holds every dtype") };
            let data_offsets = (end, end + tensor.n_bytes());
            end = data_offsets.1;
            map.serialize_entry(
                name,
                &TensorInfo { dtype, shape: tensor.shape().dims().to_vec(), data_offsets },
            )?;
        }
        map.end()
    }
}

/// Counts what is written.
struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
