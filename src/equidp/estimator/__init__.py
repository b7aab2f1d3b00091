"""Private training behind scikit-learn's interface.

What scikit-learn's conventions ask for belongs here; tables are encoded in tables/, and models are trained in
training/, as from the command line.
"""

from equidp.estimator.classifier import PrivateClassifier

__all__ = ["PrivateClassifier"]
