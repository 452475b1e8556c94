//! The state rules of queue pairs.
