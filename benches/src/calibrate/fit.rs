//! Fits the cost coefficients of steps and requests to observed times: least squares without negative coefficients.

/// Number of rounds of the weighted least-squares fit. In each round, the weight of an observed time is the inverse of
/// the time that the previous round predicts for it.
const ROUNDS: usize = 8;
/// Lower limit of the predicted time whose inverse weights a row of the fit, as a share of the mean observed time.
/// Without it, a prediction near 0 would give an infinite weight.
const LEAST_SHARE: f64 = 0.01;
/// Weight of the prior costs in [`fit_near`], as a share of the weight of the observed rows. Of columns that rise and
/// fall together, the rows tell only the sum of the costs, and this small weight decides how the sum is divided.
const PRIOR_WEIGHT: f64 = 0.003;

/// Returns the non-negative cost coefficients with which a weighted sum of the columns best predicts the observed
/// times. A row of `rows` holds one value per column and the observed time. Squared errors are divided by the predicted
/// time, so that long steps, whose times spread more, do not outweigh short ones. With these weights, the predictions
/// of all rows add up to (almost exactly) the sum of the observations. Returns `None` if there are fewer rows than
/// columns.
pub(crate) fn fit<const N: usize>(rows: &[([f64; N], f64)]) -> Option<[f64; N]> {
    fit_with(rows, None)
}

/// Returns cost coefficients as [`fit`] does, but costs that the rows do not tell apart stay in the ratio of the costs
/// `prior`: a ridge regression (Hoerl and Kennard, Technometrics 12, 1970) with the prior costs, scaled to the rows, in
/// place of zeros. A cost whose prior cost is 0 is fitted freely. The predictions of all rows add up to the sum of the
/// observations.
pub(crate) fn fit_near<const N: usize>(
    rows: &[([f64; N], f64)],
    prior: &[f64; N],
) -> Option<[f64; N]> {
    let observed: f64 = rows.iter().map(|(_, observed)| observed).sum();
    let of_all = |costs: &[f64; N]| rows.iter().map(|(row, _)| predicted(costs, row)).sum::<f64>();
    let scale = observed / of_all(prior);
    if !scale.is_finite() {
        return fit(rows);
    }
    let found = fit_with(rows, Some(&prior.map(|cost| scale * cost)))?;
    let rest = observed / of_all(&found);
    Some(if rest.is_finite() { found.map(|cost| rest * cost) } else { found })
}

fn fit_with<const N: usize>(
    rows: &[([f64; N], f64)],
    prior: Option<&[f64; N]>,
) -> Option<[f64; N]> {
    if rows.len() < N {
        return None;
    }
    let mean = rows.iter().map(|(_, observed)| observed).sum::<f64>() / rows.len() as f64;
    let least = (LEAST_SHARE * mean).max(f64::MIN_POSITIVE);
    let mut found = weighted(rows, |_| 1.0, prior)?;
    for _ in 0..ROUNDS {
        let before = found;
        let weight = |row: &[f64; N]| predicted(&before, row).max(least).recip();
        found = weighted(rows, weight, prior)?;
    }
    Some(found)
}

/// Returns the time that fitted coefficients predict for a row: the sum of coefficient times column value.
pub(crate) fn predicted<const N: usize>(coefficients: &[f64; N], columns: &[f64; N]) -> f64 {
    coefficients.iter().zip(columns).map(|(cost, value)| cost * value).sum()
}

/// Solves weighted least squares with non-negative coefficients: while a coefficient comes out negative, leaves out the
/// column with the most negative one (its coefficient becomes 0) and solves again. If `prior` is given, the distance of
/// each coefficient from its prior value adds to the squared errors.
fn weighted<const N: usize>(
    rows: &[([f64; N], f64)],
    weight: impl Fn(&[f64; N]) -> f64,
    prior: Option<&[f64; N]>,
) -> Option<[f64; N]> {
    let mut products = [[0.0; N]; N];
    let mut targets = [0.0; N];
    for (columns, observed) in rows {
        let weight = weight(columns);
        for i in 0..N {
            targets[i] += weight * columns[i] * observed;
            for j in 0..N {
                products[i][j] += weight * columns[i] * columns[j];
            }
        }
    }
    let prior = prior.copied().unwrap_or([0.0; N]);
    let all = rows.iter().map(|(row, _)| weight(row) * predicted(&prior, row).powi(2)).sum::<f64>();
    for i in (0..N).filter(|i| prior[*i] > 0.0) {
        // The penalty for leaving a prior cost grows with the column's part of the predicted times, and not with the
        // square of this part. So if columns that rise together must cost more or less in sum, the smallest penalty is
        // that of the same factor on all their prior costs.
        let distance = PRIOR_WEIGHT * (products[i][i] * all).sqrt();
        targets[i] += distance;
        products[i][i] += distance / prior[i];
    }
    // Skip columns that are zero in all rows: their coefficients cannot be determined.
    let mut used: Vec<usize> = (0..N).filter(|&i| products[i][i] > 0.0).collect();
    loop {
        let solved = solve(&products, &targets, &used)?;
        let worst = used.iter().zip(&solved).min_by(|a, b| a.1.total_cmp(b.1));
        match worst {
            Some((&column, &cost)) if cost < 0.0 => used.retain(|&i| i != column),
            _ => {
                let mut all = [0.0; N];
                used.iter().zip(solved).for_each(|(&i, cost)| all[i] = cost);
                return Some(all);
            }
        }
    }
}

/// Solves the linear equations for the coefficients of the columns in use, by Gaussian elimination with pivoting. A
/// column that is a linear combination of others gets coefficient 0.
fn solve<const N: usize>(
    products: &[[f64; N]; N],
    targets: &[f64; N],
    used: &[usize],
) -> Option<Vec<f64>> {
    let size = used.len();
    // The columns of the fit differ by many orders of magnitude. Divide each by its Euclidean norm, so that the
    // elimination is numerically stable.
    let scale: Vec<f64> = used.iter().map(|&i| products[i][i].sqrt()).collect();
    let mut matrix: Vec<Vec<f64>> = (0..size)
        .map(|i| {
            let row = (0..size).map(|j| products[used[i]][used[j]] / (scale[i] * scale[j]));
            row.chain([targets[used[i]] / scale[i]]).collect()
        })
        .collect();
    for at in 0..size {
        let pivot =
            (at..size).max_by(|&a, &b| matrix[a][at].abs().total_cmp(&matrix[b][at].abs()))?;
        matrix.swap(at, pivot);
        if matrix[at][at].abs() < 1e-12 {
            continue;
        }
        let pivot_row = matrix[at].clone();
        for (_, row) in matrix.iter_mut().enumerate().filter(|(row, _)| *row != at) {
            let factor = row[at] / pivot_row[at];
            row.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    let value = |i: usize| match matrix[i][i].abs() < 1e-12 {
        true => 0.0,
        false => matrix[i][size] / matrix[i][i] / scale[i],
    };
    Some((0..size).map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(costs: [f64; 3], off: impl Fn(usize) -> f64) -> Vec<([f64; 3], f64)> {
        let columns = (0..200).map(|i| [1.0, (i % 16) as f64, (i % 7 * 40) as f64]);
        columns.enumerate().map(|(i, c)| (c, predicted(&costs, &c) * off(i))).collect()
    }

    #[test]
    fn costs_that_explain_everything_are_found() {
        let found = fit(&rows([3_000.0, 1_400.0, 0.5], |_| 1.0)).unwrap();
        for (found, cost) in found.iter().zip([3_000.0, 1_400.0, 0.5]) {
            assert!((found / cost - 1.0).abs() < 1e-6, "{found} {cost}");
        }
    }

    #[test]
    fn a_fit_of_noisy_steps_is_right_on_average() {
        let rows = rows([3_000.0, 1_400.0, 0.5], |i| if i % 5 == 0 { 1.4 } else { 0.9 });
        let found = fit(&rows).unwrap();
        let observed: f64 = rows.iter().map(|(_, observed)| observed).sum();
        let all: f64 = rows.iter().map(|(columns, _)| predicted(&found, columns)).sum();
        assert!((all / observed - 1.0).abs() < 1e-6, "{all} {observed}");
        assert!((found[1] / 1_400.0 - 1.0).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn costs_that_the_rows_do_not_tell_apart_stay_in_the_ratio_of_the_prior_ones() {
        // The second and the third column rise together: each unit of the second comes with ten units of the third, and
        // the eleven units cost 60.
        let rows: Vec<([f64; 3], f64)> = (0..200)
            .map(|i| f64::from(i % 16))
            .map(|i| ([1.0, i, 10.0 * i], 3_000.0 + 60.0 * i))
            .collect();
        for prior in [[3_000.0, 40.0, 8.0], [1_500.0, 40.0, 0.5], [6_000.0, 1.0, 8.0]] {
            let found = fit_near(&rows, &prior).unwrap();
            let ratio = (found[1] / found[2]) / (prior[1] / prior[2]);
            assert!((ratio - 1.0).abs() < 0.01, "{prior:?} {found:?}");
            let both = found[1] + 10.0 * found[2];
            assert!((both / 60.0 - 1.0).abs() < 0.2, "{prior:?} {found:?}");
        }
        // Without prior costs one of the columns gets the whole cost.
        assert_eq!(fit_near(&rows, &[0.0; 3]), fit(&rows));
    }

    #[test]
    fn costs_that_the_rows_tell_apart_hardly_follow_the_prior_ones() {
        let rows = rows([3_000.0, 1_400.0, 50.0], |_| 1.0);
        let found = fit_near(&rows, &[3_000.0, 700.0, 100.0]).unwrap();
        for (found, cost) in found.iter().zip([3_000.0, 1_400.0, 50.0]) {
            assert!((found / cost - 1.0).abs() < 0.15, "{found} {cost}");
        }
        let observed: f64 = rows.iter().map(|(_, observed)| observed).sum();
        let all: f64 = rows.iter().map(|(columns, _)| predicted(&found, columns)).sum();
        assert!((all / observed - 1.0).abs() < 1e-9, "{all} {observed}");
    }

    #[test]
    fn no_cost_is_negative_and_what_was_never_seen_costs_nothing() {
        let falling: Vec<([f64; 3], f64)> =
            (0..50).map(|i| ([1.0, f64::from(i), 0.0], 1_000.0 - f64::from(i))).collect();
        let found = fit(&falling).unwrap();
        assert!(found[0] > 900.0 && found[1..] == [0.0, 0.0], "{found:?}");
        assert_eq!(fit(&falling[..2]), None);
    }
}
