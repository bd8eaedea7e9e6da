//! Objects of one kind by id, in order of id.

/// A sorted table. Ids count up and come round only after the whole range, so an id of an ended
/// object does not soon name another.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<(u32, T)>,
    next: u32,
    id_max: u32,
}

impl<T> Table<T> {
    /// An empty table whose ids are `1..=id_max`.
    pub(super) fn new(id_max: u32) -> Table<T> {
        Table { entries: Vec::new(), next: 1, id_max }
    }

    /// Stores a value under a new id; `None` when every id is taken.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        if self.entries.len() >= self.id_max as usize {
            return None;
        }
        loop {
            let id = self.next;
            self.next = if id >= self.id_max { 1 } else { id + 1 };
            if let Err(at) = self.find(id) {
                self.entries.insert(at, (id, value));
                return Some(id);
            }
        }
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        let at = self.position(id)?;
        Some(&self.entries[at].1)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let at = self.position(id)?;
        Some(&mut self.entries[at].1)
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        let at = self.position(id)?;
        Some(self.entries.remove(at).1)
    }

    /// Where an id stands; positions are `0..len()` and valid until the next insert or remove.
    pub(super) fn position(&self, id: u32) -> Option<usize> {
        self.find(id).ok()
    }

    pub(super) fn at(&self, position: usize) -> (u32, &T) {
        let (id, value) = &self.entries[position];
        (*id, value)
    }

    pub(super) fn at_mut(&mut self, position: usize) -> (u32, &mut T) {
        let (id, value) = &mut self.entries[position];
        (*id, value)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|(id, value)| (*id, value))
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    fn find(&self, id: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&id, |e| e.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_not_reused_until_the_range_comes_round() {
        let mut t = Table::new(4);
        assert_eq!((t.insert('a'), t.insert('b')), (Some(1), Some(2)));
        assert_eq!(t.remove(1), Some('a'));
        assert_eq!((t.insert('c'), t.insert('d')), (Some(3), Some(4)));
        assert_eq!(t.insert('e'), Some(1));
        assert_eq!(t.insert('f'), None);
        assert_eq!(t.iter().map(|(id, _)| id).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(t.get(1), Some(&'e'));
    }
}
