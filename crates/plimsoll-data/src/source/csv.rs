//! Elements that are the records of a CSV file of numbers.
//!
//! The file is gone through twice when it is opened: once to count its records, once to write their numbers to tensors
//! of exactly that size, counted as data. So every bad number is found, with its place, before anything runs, and no
//! text is read again in every epoch.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use ::csv::{ByteRecord, Position, Reader, ReaderBuilder};
use half::{bf16, f16};
use plimsoll_tensor::{DType, Device, Element, Error, Piece, Result, Shape, elements_mut};

use crate::dataset::{Dataset, at_caller};

/// A CSV file, and which of its columns become which field. Without a choice all columns become one field, `columns`,
/// of float32.
#[derive(Clone, Debug)]
pub struct Csv {
    path: PathBuf,
    has_header: bool,
    delimiter: u8,
    fields: Vec<FieldOfColumns>,
}

#[derive(Clone, Debug)]
struct FieldOfColumns {
    name: String,
    columns: Vec<String>,
    dtype: DType,
    /// Whether the field is a single number rather than a vector.
    is_single: bool,
}

impl Csv {
    /// The file at `path`, whose first line names the columns.
    pub fn new(path: impl AsRef<Path>) -> Csv {
        Csv { path: path.as_ref().to_owned(), has_header: true, delimiter: b',', fields: Vec::new() }
    }

    /// This file without a line of names: columns are called `0`, `1` and so on.
    pub fn no_header(mut self) -> Csv {
        self.has_header = false;
        self
    }

    /// This file with another character between columns.
    pub fn delimiter(mut self, delimiter: u8) -> Csv {
        self.delimiter = delimiter;
        self
    }

    /// Some columns become a field: a vector.
    pub fn field<S: Into<String>>(
        mut self,
        name: impl Into<String>,
        columns: impl IntoIterator<Item = S>,
        dtype: DType,
    ) -> Csv {
        let columns = columns.into_iter().map(Into::into).collect();
        self.fields.push(FieldOfColumns { name: name.into(), columns, dtype, is_single: false });
        self
    }

    /// A column becomes a field of its name: a single number.
    pub fn column(mut self, name: impl Into<String>, dtype: DType) -> Csv {
        let name = name.into();
        self.fields.push(FieldOfColumns { columns: vec![name.clone()], name, dtype, is_single: true });
        self
    }

    /// Reads the file.
    ///
    /// # Errors
    /// A file that cannot be read; a column that is not there; a record that is longer or shorter than the first;
    /// something that is no number, with its line and column; memory that is full.
    #[track_caller]
    pub fn read(&self) -> Result<Dataset> {
        at_caller(|| self.read_here())
    }

    fn read_here(&self) -> Result<Dataset> {
        let mut reader = self.reader()?;
        let mut record = ByteRecord::new();
        let header: Vec<String> = match self.has_header {
            true => {
                let header = reader.byte_headers().map_err(|error| self.malformed(&error))?;
                header.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect()
            }
            false => Vec::new(),
        };
        let mut n_records = 0;
        let mut n_columns = header.len();
        while reader.read_byte_record(&mut record).map_err(|error| self.malformed(&error))? {
            n_columns = record.len();
            n_records += 1;
        }
        let header = match self.has_header {
            true => header,
            false => (0..n_columns).map(|idx| idx.to_string()).collect(),
        };
        let fields = self.fields(&header);
        let places = fields.iter().map(|field| self.places(field, &header)).collect::<Result<Vec<_>>>()?;
        let device = Device::current().host();
        let mut pieces = Vec::new();
        for (field, places) in fields.iter().zip(&places) {
            let n_bytes = n_records * places.len() * field.dtype.size();
            pieces.push(Piece::acquire(&device, n_bytes, "read_csv")?);
        }
        if !device.is_ghost() {
            self.fill(&fields, &places, &header, n_records, &mut pieces)?;
        }
        let tensors = fields.iter().zip(&places).zip(pieces).map(|((field, places), piece)| {
            let dims = [n_records, places.len()];
            let shape = Shape::new(if field.is_single { &dims[..1] } else { &dims })?;
            Ok((field.name.clone(), piece.into_tensor(shape, field.dtype)?))
        });
        Dataset::from_tensor_slices(tensors.collect::<Result<Vec<_>>>()?)
    }

    fn reader(&self) -> Result<Reader<File>> {
        let file = File::open(&self.path).map_err(|error| Error::io(&self.path, error))?;
        let mut builder = ReaderBuilder::new();
        Ok(builder.has_headers(self.has_header).delimiter(self.delimiter).from_reader(file))
    }

    /// The fields asked for, or one of all columns.
    fn fields(&self, header: &[String]) -> Vec<FieldOfColumns> {
        if !self.fields.is_empty() {
            return self.fields.clone();
        }
        let columns = header.to_vec();
        vec![FieldOfColumns { name: "columns".to_owned(), columns, dtype: DType::F32, is_single: false }]
    }

    /// Which columns of a record belong to a field.
    fn places(&self, field: &FieldOfColumns, header: &[String]) -> Result<Vec<usize>> {
        let place = |column: &String| {
            header.iter().position(|name| name == column).ok_or_else(|| {
                Error::format(
                    &self.path,
                    format!("there is no column {column:?}; the columns are {header:?}"),
                )
            })
        };
        field.columns.iter().map(place).collect()
    }

    /// Writes the numbers of all records to the memory of their fields.
    fn fill(
        &self,
        fields: &[FieldOfColumns],
        places: &[Vec<usize>],
        header: &[String],
        n_records: usize,
        pieces: &mut [Piece],
    ) -> Result<()> {
        let changed = || Error::format(&self.path, "the file changed while it was read");
        let mut reader = self.reader()?;
        let mut record = ByteRecord::new();
        for row in 0..n_records {
            if !reader.read_byte_record(&mut record).map_err(|error| self.malformed(&error))? {
                return Err(changed());
            }
            for ((field, places), piece) in fields.iter().zip(places).zip(&mut *pieces) {
                for (k, &place) in places.iter().enumerate() {
                    let text = record.get(place).ok_or_else(changed)?;
                    let size = field.dtype.size();
                    let to = &mut piece.bytes_mut()[(row * places.len() + k) * size..][..size];
                    if parse(text, field.dtype, to).is_none() {
                        let line = self.line(record.position());
                        let path = format!("{}:{line}:{}", self.path.display(), place + 1);
                        return Err(Error::format(
                            Path::new(&path),
                            format!(
                                "column {:?} has {:?}, which is no {}",
                                header[place],
                                String::from_utf8_lossy(text),
                                field.dtype
                            ),
                        ));
                    }
                }
            }
        }
        match reader.read_byte_record(&mut record) {
            Ok(false) => Ok(()),
            _ => Err(changed()),
        }
    }

    /// The line of a record. The reader says where it ended the one before, which may be in the middle of a line end or
    /// before lines without contents, so the lines are counted anew.
    fn line(&self, position: Option<&Position>) -> u64 {
        let Ok(file) = File::open(&self.path) else { return 0 };
        let start = position.map_or(0, Position::byte);
        let mut line = 1;
        for (at, byte) in BufReader::new(file).bytes().map_while(std::io::Result::ok).enumerate() {
            if at as u64 >= start && !matches!(byte, b'\r' | b'\n') {
                break;
            }
            line += u64::from(byte == b'\n');
        }
        line
    }

    fn malformed(&self, error: &::csv::Error) -> Error {
        if let ::csv::ErrorKind::UnequalLengths { pos, expected_len, len } = error.kind() {
            let line = self.line(pos.as_ref());
            let path = format!("{}:{line}:{}", self.path.display(), len.min(expected_len) + 1);
            let detail = format!("the record has {len} columns, and those before it have {expected_len}");
            return Error::format(Path::new(&path), detail);
        }
        Error::format(&self.path, error.to_string())
    }
}

/// Writes a number to `to`, which has the size of its dtype.
fn parse(text: &[u8], dtype: DType, to: &mut [u8]) -> Option<()> {
    fn put<T: Element>(value: T, to: &mut [u8]) -> Option<()> {
        elements_mut::<T>(to)?[0] = value;
        Some(())
    }
    let text = std::str::from_utf8(text).ok()?.trim();
    match dtype {
        DType::F64 => put::<f64>(text.parse().ok()?, to),
        DType::F32 => put::<f32>(text.parse().ok()?, to),
        DType::F16 => put(f16::from_f64(text.parse().ok()?), to),
        DType::BF16 => put(bf16::from_f64(text.parse().ok()?), to),
        DType::I64 => put::<i64>(text.parse().ok()?, to),
        DType::I32 => put::<i32>(text.parse().ok()?, to),
        DType::U8 => put::<u8>(text.parse().ok()?, to),
        DType::Bool => match text {
            "1" | "true" | "True" | "TRUE" => put(true, to),
            "0" | "false" | "False" | "FALSE" => put(false, to),
            _ => None,
        },
    }
}
