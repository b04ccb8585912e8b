//! The rows of a result.

/// RESULT: rows.
const ROWS: i32 = 2;

/// Metadata: one table is named for all columns, and there is no further page.
const ONE_TABLE: i32 = 1;

/// The values of a result that has one column, but for those that are null.
pub fn only_column(body: &[u8]) -> Vec<&[u8]> {
    let mut reader = Reader(body);
    let [kind, flags, columns] = [0; 3].map(|_| reader.int());
    assert_eq!([kind, flags, columns], [ROWS, ONE_TABLE, 1], "{body:?}");
    // Keyspace, table and column; and the type, which is no collection.
    for _ in 0..3 {
        reader.string();
    }
    reader.short();
    let rows = reader.int();
    (0..rows).filter_map(|_| reader.value()).collect()
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, bytes: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn string(&mut self) -> &'b [u8] {
        let bytes = self.short();
        self.take(usize::from(bytes))
    }

    fn value(&mut self) -> Option<&'b [u8]> {
        let bytes = usize::try_from(self.int()).ok()?;
        Some(self.take(bytes))
    }
}
