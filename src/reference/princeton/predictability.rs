//! Predictability: how well an agent's confidence predicts whether it succeeds.
//!
//! ```text
//! P_rc    = clip(1 - (AURC - AURC*) / (error - AURC* + 1e-8))
//! P_cal   = 1 - sum over bins of n_b / N * |accuracy_b - confidence_b|
//! P_auroc = (concordant + tied / 2) / (n+ * n-)
//! P_brier = 1 - mean (c - y)^2
//! ```
//!
//! AURC is the area under the risk at 100 coverages i/99, by trapezoids; at each the `max(1, trunc(coverage * N))` most confident
//! are covered. The source leaves the order of equal confidences open; here each of them has the mean risk of its group, which is
//! the mean over all orders.

/// A confidence and whether the run succeeded.
pub type Prediction = (f64, bool);

/// A non-empty bin of the calibration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The middle of the bin.
    pub center: f64,
    /// The number of its predictions.
    pub count: usize,
    /// The mean confidence of its predictions.
    pub confidence: f64,
    /// The share of its predictions that succeeded.
    pub accuracy: f64,
}

/// `P_rc`; `None` over nothing.
pub fn risk_coverage(predictions: &[Prediction]) -> Option<f64> {
    let wrong = predictions.iter().filter(|(_, success)| !success).count();
    aurc(predictions).map(|aurc| excess(aurc, wrong, predictions.len()))
}

/// AURC; `None` over nothing.
pub fn aurc(predictions: &[Prediction]) -> Option<f64> {
    let mut sorted = predictions.to_vec();
    sorted.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut risks = Vec::new();
    for tied in sorted.chunk_by(|(a, _), (b, _)| a.total_cmp(b).is_eq()) {
        let wrong = tied.iter().filter(|(_, success)| !success).count();
        risks.extend(vec![wrong as f64 / tied.len() as f64; tied.len()]);
    }
    (!risks.is_empty()).then(|| area(&curve(&risks)))
}

/// `P_rc` of a risk curve, given at the 100 coverages, over `n` predictions of which `wrong` failed.
pub fn risk_coverage_of_curve(curve: &[f64], wrong: usize, n: usize) -> f64 {
    excess(area(curve), wrong, n)
}

/// `P_cal`; `None` over nothing.
pub fn calibration(predictions: &[Prediction]) -> Option<f64> {
    ece(predictions).map(|ece| 1.0 - ece)
}

/// Expected calibration error; `None` over nothing. Confidences outside `[0,1]` are in no bin, and count.
pub fn ece(predictions: &[Prediction]) -> Option<f64> {
    let n = predictions.len() as f64;
    let off = |bin: Bin| bin.count as f64 / n * (bin.accuracy - bin.confidence).abs();
    (!predictions.is_empty()).then(|| bins(predictions).into_iter().map(off).sum())
}

/// The non-empty bins: `[i * 0.1, (i + 1) * 0.1)` in floats, the last one closed.
pub fn bins(predictions: &[Prediction]) -> Vec<Bin> {
    let bin = |at: u8| {
        let (low, high) = (f64::from(at) * 0.1, f64::from(at + 1) * 0.1);
        let within = |confidence: f64| {
            low <= confidence && (confidence < high || at == 9 && confidence <= high)
        };
        let inside: Vec<&Prediction> =
            predictions.iter().filter(|(confidence, _)| within(*confidence)).collect();
        let confidences: Vec<f64> = inside.iter().map(|(confidence, _)| *confidence).collect();
        let right = inside.iter().filter(|(_, success)| *success).count();
        super::mean(&confidences).map(|confidence| Bin {
            center: (low + high) / 2.0,
            count: inside.len(),
            confidence,
            accuracy: right as f64 / inside.len() as f64,
        })
    };
    (0..10).filter_map(bin).collect()
}

/// `P_auroc`; `None` without both outcomes.
pub fn auroc(predictions: &[Prediction]) -> Option<f64> {
    let of = |wanted: bool| predictions.iter().filter(move |(_, success)| *success == wanted);
    let mut pairs = Vec::new();
    for (right, _) in of(true) {
        pairs.extend(of(false).map(|(wrong, _)| match right.total_cmp(wrong) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        }));
    }
    super::mean(&pairs)
}

/// `P_brier`; `None` over nothing.
pub fn brier(predictions: &[Prediction]) -> Option<f64> {
    let squares: Vec<f64> =
        predictions.iter().map(|(c, y)| (c - f64::from(u8::from(*y))).powi(2)).collect();
    super::mean(&squares).map(|mean| 1.0 - mean)
}

fn excess(aurc: f64, wrong: usize, n: usize) -> f64 {
    let mut best = vec![0.0; n - wrong];
    best.extend(vec![1.0; wrong]);
    let best = area(&curve(&best));
    let possible = wrong as f64 / n as f64 - best;
    if possible <= 1e-8 { 1.0 } else { (1.0 - (aurc - best) / (possible + 1e-8)).clamp(0.0, 1.0) }
}

/// The coverages, as in numpy's `linspace(0, 1, 100)`.
fn coverages() -> Vec<f64> {
    (0..100_u8).map(|at| if at == 99 { 1.0 } else { f64::from(at) * (1.0 / 99.0) }).collect()
}

/// The mean of the first risks, at each coverage.
fn curve(risks: &[f64]) -> Vec<f64> {
    let at = |coverage: f64| {
        let mut covered = 1;
        while (covered + 1) as f64 <= coverage * risks.len() as f64 {
            covered += 1;
        }
        risks.iter().take(covered).sum::<f64>() / covered as f64
    };
    coverages().into_iter().map(at).collect()
}

fn area(curve: &[f64]) -> f64 {
    let steps = coverages();
    let trapezoid = |(x, y): (&[f64], &[f64])| (x[1] - x[0]) * (y[0] + y[1]) / 2.0;
    steps.windows(2).zip(curve.windows(2)).map(trapezoid).sum()
}
