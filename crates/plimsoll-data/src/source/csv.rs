//! Elements that are the records of a CSV file of numbers.
//!
//! The file is gone through twice when it is opened: once to count its records, once to write their numbers to tensors
//! of exactly that size, counted as data. So every bad number is found, with its place, before anything runs, and no
//! text is read again in every epoch.
//!
//! Fields come one at a time through a buffer of fixed size, so neither the number of columns nor a quote that is never
//! closed takes memory outside the pool.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use csv_core::{ReadFieldResult, Reader, ReaderBuilder};
use half::{bf16, f16};
use plimsoll_tensor::{DType, Device, Element, Error, Piece, Result, Shape, elements_mut};

use crate::dataset::{Dataset, at_caller};

/// The longest field that is read: far longer than any number, and longer than a sensible name.
const LONGEST_FIELD: usize = 4096;

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
    /// A file that cannot be read; a column that is not there, or whose name another one has, too; a record that is longer
    /// or shorter than the first; something that is no number, with its line and column; memory that is full.
    #[track_caller]
    pub fn read(&self) -> Result<Dataset> {
        at_caller(|| self.read_here())
    }

    fn read_here(&self) -> Result<Dataset> {
        let Extent { n_records, n_columns } = self.extent()?;
        let chosen = self.chosen(n_columns)?;
        let device = Device::current().host();
        let mut pieces = Vec::new();
        for column_set in &chosen.sets {
            let n_bytes = n_records * column_set.width * column_set.dtype.size();
            pieces.push(Piece::acquire(&device, n_bytes, "read_csv")?);
        }
        if !device.is_ghost() {
            self.fill(&chosen, &Extent { n_records, n_columns }, &mut pieces)?;
        }
        let tensors = chosen.sets.into_iter().zip(pieces).map(|(set, piece)| {
            let dims = [n_records, set.width];
            let shape = Shape::new(if set.is_single { &dims[..1] } else { &dims })?;
            Ok((set.name, piece.into_tensor(shape, set.dtype)?))
        });
        Dataset::from_tensor_slices(tensors.collect::<Result<Vec<_>>>()?)
    }

    /// Goes through the whole file: all records must be as long as the first.
    fn extent(&self) -> Result<Extent> {
        let mut fields = Fields::open(self)?;
        let mut first = if self.has_header { fields.pass_record()? } else { None };
        let mut n_records = 0;
        while let Some(n) = fields.pass_record()? {
            let expected = *first.get_or_insert(n);
            if n != expected {
                let path = self.place(fields.record_start, n.min(expected));
                let detail = format!("the record has {n} columns, and those before it have {expected}");
                return Err(Error::format(&path, detail));
            }
            n_records += 1;
        }
        Ok(Extent { n_records, n_columns: first.unwrap_or(0) })
    }

    /// The fields asked for, or one of all columns, and where each of their numbers comes from.
    fn chosen(&self, n_columns: usize) -> Result<Chosen> {
        let set = |field: &FieldOfColumns| ColumnSet {
            name: field.name.clone(),
            width: field.columns.len(),
            dtype: field.dtype,
            is_single: field.is_single,
        };
        if self.fields.is_empty() {
            let name = "columns".to_owned();
            let all = ColumnSet { name, width: n_columns, dtype: DType::F32, is_single: false };
            return Ok(Chosen { sets: vec![all], targets: None });
        }
        // Where each name that is asked for is found.
        let names = self.fields.iter().flat_map(|field| &field.columns);
        let mut wanted: HashMap<&str, Option<usize>> = names.map(|name| (name.as_str(), None)).collect();
        self.each_name(n_columns, |column, name| {
            let Some(wanted) = wanted.get_mut(name) else { return Ok(()) };
            match wanted.replace(column) {
                None => Ok(()),
                Some(before) => Err(Error::format(
                    &self.path,
                    format!(
                        "columns {} and {} are both named {name:?}, so the name does not tell which is meant; give them \
                         names of their own, or read the file with `no_header`, where they are numbered",
                        before + 1,
                        column + 1
                    ),
                )),
            }
        })?;
        let mut targets = Vec::new();
        for (set, field) in self.fields.iter().enumerate() {
            for (k, name) in field.columns.iter().enumerate() {
                let column = wanted.get(name.as_str()).and_then(|&column| column);
                let column = column.ok_or_else(|| self.no_column(name, n_columns))?;
                targets.push(Target { column, set, k });
            }
        }
        targets.sort_unstable();
        Ok(Chosen { sets: self.fields.iter().map(set).collect(), targets: Some(targets) })
    }

    /// Calls `f` with the number and the name of each column.
    fn each_name(&self, n_columns: usize, mut f: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
        let mut fields = Fields::open(self)?;
        for column in 0..n_columns {
            match self.has_header {
                true => {
                    fields.next()?.ok_or_else(|| self.changed())?;
                    f(column, String::from_utf8_lossy(fields.text()).trim())?;
                }
                false => f(column, &column.to_string())?,
            }
        }
        Ok(())
    }

    fn no_column(&self, name: &str, n_columns: usize) -> Error {
        const LISTED: usize = 8;
        let mut names = Vec::new();
        let listed = self.each_name(n_columns.min(LISTED), |_, name| {
            names.push(name.to_owned());
            Ok(())
        });
        let more = match n_columns.saturating_sub(LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let missing = format!("there is no column {name:?}; the columns are {names:?}{more}");
        listed.err().unwrap_or_else(|| Error::format(&self.path, missing))
    }

    /// Writes the numbers of all records to the memory of their fields.
    fn fill(&self, chosen: &Chosen, extent: &Extent, pieces: &mut [Piece]) -> Result<()> {
        let mut fields = Fields::open(self)?;
        if self.has_header {
            fields.pass_record()?;
        }
        for row in 0..extent.n_records {
            let mut targets = chosen.targets.as_deref().unwrap_or_default();
            for column in 0..extent.n_columns {
                let is_last = fields.next()?.ok_or_else(|| self.changed())?;
                if is_last != (column + 1 == extent.n_columns) {
                    return Err(self.changed());
                }
                let mut put = |set: usize, k: usize| {
                    let ColumnSet { width, dtype, .. } = chosen.sets[set];
                    let to = &mut pieces[set].bytes_mut()[(row * width + k) * dtype.size()..][..dtype.size()];
                    parse(fields.text(), dtype, to).ok_or_else(|| self.no_number(&fields, column, dtype))
                };
                if chosen.targets.is_none() {
                    put(0, column)?;
                }
                while let Some((target, rest)) = targets.split_first().filter(|(t, _)| t.column == column) {
                    put(target.set, target.k)?;
                    targets = rest;
                }
            }
        }
        match fields.next()? {
            None => Ok(()),
            Some(_) => Err(self.changed()),
        }
    }

    fn no_number(&self, fields: &Fields<'_>, column: usize, dtype: DType) -> Error {
        let mut name = String::new();
        let found = self.each_name(column + 1, |_, here| {
            here.clone_into(&mut name);
            Ok(())
        });
        let text = String::from_utf8_lossy(fields.text());
        let detail = format!("column {name:?} has {text:?}, which is no {dtype}");
        let wrong = || Error::format(&self.place(fields.record_start, column), detail);
        found.err().unwrap_or_else(wrong)
    }

    fn changed(&self) -> Error {
        Error::format(&self.path, "the file changed while it was read")
    }

    /// The path with the line of the record that begins at a byte, and the column. What lies between the end of the record
    /// before and the first byte of this one, such as lines without contents, is passed over.
    fn place(&self, record_start: u64, column: usize) -> PathBuf {
        let mut line = 1;
        if let Ok(file) = plimsoll_file::open(&self.path) {
            for (at, byte) in BufReader::new(file).bytes().map_while(std::io::Result::ok).enumerate() {
                if at as u64 >= record_start && !matches!(byte, b'\r' | b'\n') {
                    break;
                }
                line += u64::from(byte == b'\n');
            }
        }
        PathBuf::from(format!("{}:{line}:{}", self.path.display(), column + 1))
    }
}

/// How large the table of a file is.
struct Extent {
    n_records: usize,
    n_columns: usize,
}

/// Which columns are read, and where their numbers go.
struct Chosen {
    sets: Vec<ColumnSet>,
    /// In the order of the columns; nothing if each column goes to its place in the one set.
    targets: Option<Vec<Target>>,
}

/// Columns that become one field of the dataset.
struct ColumnSet {
    name: String,
    width: usize,
    dtype: DType,
    is_single: bool,
}

/// Where the numbers of a column go: to place `k` of a set.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    column: usize,
    set: usize,
    k: usize,
}

/// The fields of a file one after the other, in memory that does not grow with them.
struct Fields<'a> {
    csv: &'a Csv,
    file: BufReader<File>,
    reader: Reader,
    field: Box<[u8; LONGEST_FIELD]>,
    len: usize,
    /// Where the next byte lies, and where the present record began.
    at: u64,
    record_start: u64,
    is_new_record: bool,
    column: usize,
}

impl<'a> Fields<'a> {
    fn open(csv: &'a Csv) -> Result<Fields<'a>> {
        let file = plimsoll_file::open(&csv.path).map_err(|error| Error::io(&csv.path, error))?;
        Ok(Fields {
            csv,
            file: BufReader::new(file),
            reader: ReaderBuilder::new().delimiter(csv.delimiter).build(),
            field: Box::new([0; LONGEST_FIELD]),
            len: 0,
            at: 0,
            record_start: 0,
            is_new_record: true,
            column: 0,
        })
    }

    /// Goes to the next field and says whether it is the last of its record; nothing at the end of the file.
    fn next(&mut self) -> Result<Option<bool>> {
        if std::mem::take(&mut self.is_new_record) {
            (self.record_start, self.column) = (self.at, 0);
        }
        self.len = 0;
        loop {
            let input = match self.file.fill_buf() {
                Ok(input) => input,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::io(&self.csv.path, error)),
            };
            let (result, n_in, n_out) = self.reader.read_field(input, &mut self.field[self.len..]);
            self.file.consume(n_in);
            (self.at, self.len) = (self.at + n_in as u64, self.len + n_out);
            match result {
                ReadFieldResult::InputEmpty => {}
                ReadFieldResult::OutputFull => {
                    let path = self.csv.place(self.record_start, self.column);
                    let detail = format!(
                        "the field has more than {LONGEST_FIELD} bytes, which is no number and no name; is a quote left open?"
                    );
                    return Err(Error::format(&path, detail));
                }
                ReadFieldResult::Field { record_end } => {
                    self.is_new_record = record_end;
                    self.column += 1;
                    return Ok(Some(record_end));
                }
                ReadFieldResult::End => return Ok(None),
            }
        }
    }

    /// The text of the present field.
    fn text(&self) -> &[u8] {
        &self.field[..self.len]
    }

    /// Goes over the next record and says how many fields it has; nothing at the end of the file.
    fn pass_record(&mut self) -> Result<Option<usize>> {
        while let Some(is_last) = self.next()? {
            if is_last {
                return Ok(Some(self.column));
            }
        }
        Ok(None)
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
