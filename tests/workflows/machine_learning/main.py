import json

import joblib
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, classification_report
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

df = pd.read_csv("customers.csv")
X, y = df.drop(columns="left"), df["left"]
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)

numbers = ["months", "calls", "age", "spend"]
prepare = make_column_transformer(
    (make_pipeline(SimpleImputer(), StandardScaler()), numbers), (OneHotEncoder(), ["plan"]), remainder="drop"
)
linear = make_pipeline(prepare, LogisticRegression(max_iter=1000)).fit(X_train, y_train)
forest = make_pipeline(prepare, RandomForestClassifier(60, random_state=0)).fit(X_train, y_train)
importance = pd.Series(forest[-1].feature_importances_, index=prepare.fit(X_train).get_feature_names_out())

metrics = {
    "rows": len(df),
    "left": int(y.sum()),
    "test_rows": len(X_test),
    "linear": accuracy_score(y_test, linear.predict(X_test)),
    "forest": accuracy_score(y_test, forest.predict(X_test)),
    "cross_validation": cross_val_score(linear, X, y, cv=5).tolist(),
    "importance": importance.sort_values(ascending=False).to_dict(),
}
with open("metrics.json", "w") as f:
    json.dump(metrics, f, indent=2)
X_test.assign(left=y_test, predicted=linear.predict(X_test)).to_csv("predictions.csv")
joblib.dump(linear, "model.joblib")
print(classification_report(y_test, linear.predict(X_test)))
