//! Rows of a snapshot, and the orders in which listings show them. Each order is computed once for each snapshot.

use crate::control::row::Row;
use serde::Deserialize;
use std::cmp::Reverse;
use std::sync::OnceLock;

/// Order of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sort {
    /// Requests with the least slack first; those without a target last.
    Slack,
    /// The oldest request first.
    Age,
    /// The request with the most output tokens first.
    Output,
}

/// Number of orders.
const SORTS: usize = 3;

/// Rows in the order of service, with the other orders.
#[derive(Debug, Default)]
pub(crate) struct SortedRows {
    rows: Vec<Row>,
    /// Places in `rows`, in each order. An order is computed for the first listing that asks for it.
    orders: [OnceLock<Vec<usize>>; SORTS],
}

impl SortedRows {
    /// Takes rows that are in the order of service.
    pub(crate) fn new(rows: Vec<Row>) -> SortedRows {
        SortedRows { rows, orders: Default::default() }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns all rows in the order `sort`, or in the order of service. Rows of equal age are in the order of arrival;
    /// rows that are equal in another order are in the order of service.
    pub(crate) fn in_order(&self, sort: Option<Sort>) -> Box<dyn Iterator<Item = &Row> + '_> {
        match sort {
            None => Box::new(self.rows.iter()),
            Some(sort) => Box::new(self.order(sort).iter().map(|place| &self.rows[*place])),
        }
    }

    fn order(&self, sort: Sort) -> &[usize] {
        let rows = &self.rows;
        self.orders[sort as usize].get_or_init(|| {
            let mut places: Vec<usize> = (0..rows.len()).collect();
            match sort {
                Sort::Slack => {
                    places.sort_by(|a, b| slack(&rows[*a]).total_cmp(&slack(&rows[*b])));
                }
                Sort::Age => {
                    places.sort_by_key(|place| (Reverse(rows[*place].age_ms), rows[*place].seq));
                }
                Sort::Output => {
                    places.sort_by_key(|place| Reverse(rows[*place].progress.output_tokens));
                }
            }
            places
        })
    }
}

fn slack(row: &Row) -> f64 {
    row.slack_ms.unwrap_or(f64::INFINITY)
}
