"""Private training behind scikit-learn's interface."""

from equidp.estimator.classifier import PrivateClassifier
from equidp.estimator.regressor import PrivateRegressor

__all__ = ["PrivateClassifier", "PrivateRegressor"]
