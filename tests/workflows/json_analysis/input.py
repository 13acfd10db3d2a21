"""Customers with orders with items, as an API gives them; some have no orders, some fields are missing."""

import json
import random
import sys

source = random.Random(3)
COUNTRIES = ["DE", "FR", "IT", "JP"]
customers, spent, by_country, items_sold = [], {}, {}, 0
for number in range(300):
    name, country = f"Customer {number:03}", source.choice(COUNTRIES)
    orders = []
    for order in range(source.randrange(5)):
        items = [
            {
                "sku": f"SKU-{source.randrange(40):02}",
                "quantity": source.randint(1, 5),
                "price": {"amount": source.randrange(100, 9999), "currency": "EUR"},
            }
            for _ in range(source.randint(1, 4))
        ]
        orders.append({"id": f"{number}-{order}", "items": items})
        value = sum(item["quantity"] * item["price"]["amount"] for item in items)
        spent[name] = spent.get(name, 0) + value
        by_country[country] = by_country.get(country, 0) + value
        items_sold += sum(item["quantity"] for item in items)
    customer = {"name": name, "address": {"country": country, "city": None}, "orders": orders}
    if source.random() < 0.8:
        customer["email"] = f"c{number}@example.com"
    customers.append(customer)
json.dump({"page": 1, "customers": customers}, open(f"{sys.argv[1]}/customers.json", "w"), indent=1)
top = sorted(spent, key=lambda name: (-spent[name], name))[:5]
truth = {
    "customers": 300,
    "without_orders": sum(not customer["orders"] for customer in customers),
    "without_email": sum("email" not in customer for customer in customers),
    "items_sold": items_sold,
    "by_country": dict(sorted(by_country.items())),
    "top": [[name, spent[name]] for name in top],
    "lines": sum(len(order["items"]) for customer in customers for order in customer["orders"]),
}
print(json.dumps(truth))
