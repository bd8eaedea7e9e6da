//! What crosses threads: the flags and the bell of handles, the views of a buffer, the queue of
//! MRs whose buffers are gone, and the shared state of the software device and its wrappers.
//!
//! All of it is built from the primitives named here: std's, or, in a build with `--cfg shuttle`,
//! ones under which every operation is a point where another thread may go on, so that a test can
//! try many schedules of real code; or, with `--cfg loom`, ones that give a load every value that
//! the orderings allow. What is only counted up (ids) or never changes (a device's
//! name) stays with std. The words of a buffer do too: they lie in mapped memory, and copies of
//! them may tear at any point anyway.

#[cfg(not(any(shuttle, loom)))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize},
};

#[cfg(shuttle)]
pub(crate) use {
    counted::Arc,
    shuttle::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize},
    },
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize},
};

pub(crate) use std::sync::{PoisonError, atomic::Ordering};

/// An `Arc` whose count is an atomic of the scheduler.
///
/// Its own `Arc` is std's, between whose operations no other thread is ever let in; but here they
/// are the protocol: a flag is recycled, and bytes are given back, when nobody else holds them.
#[cfg(shuttle)]
mod counted {
    use super::{AtomicUsize, Ordering};
    use std::fmt;
    use std::ops::Deref;

    pub(crate) struct Arc<T>(std::sync::Arc<Shared<T>>);

    struct Shared<T> {
        /// Touched where the real count is; the real one decides.
        count: AtomicUsize,
        value: T,
    }

    impl<T> Arc<T> {
        pub(crate) fn new(value: T) -> Arc<T> {
            Arc(std::sync::Arc::new(Shared { count: AtomicUsize::new(1), value }))
        }

        pub(crate) fn get_mut(this: &mut Arc<T>) -> Option<&mut T> {
            this.0.count.load(Ordering::SeqCst);
            std::sync::Arc::get_mut(&mut this.0).map(|shared| &mut shared.value)
        }

        pub(crate) fn ptr_eq(a: &Arc<T>, b: &Arc<T>) -> bool {
            std::sync::Arc::ptr_eq(&a.0, &b.0)
        }

        #[cfg(test)]
        pub(crate) fn strong_count(this: &Arc<T>) -> usize {
            this.0.count.load(Ordering::SeqCst);
            std::sync::Arc::strong_count(&this.0)
        }
    }

    impl<T> Clone for Arc<T> {
        fn clone(&self) -> Arc<T> {
            self.0.count.fetch_add(1, Ordering::SeqCst);
            Arc(std::sync::Arc::clone(&self.0))
        }
    }

    impl<T> Drop for Arc<T> {
        fn drop(&mut self) {
            self.0.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl<T> Deref for Arc<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0.value
        }
    }

    impl<T: Default> Default for Arc<T> {
        fn default() -> Arc<T> {
            Arc::new(T::default())
        }
    }

    impl<T: fmt::Debug> fmt::Debug for Arc<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.value.fmt(f)
        }
    }
}
