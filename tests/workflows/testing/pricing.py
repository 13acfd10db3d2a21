"""The user's code, with a mistake: the discount is taken off twice."""


def discount(price, percent):
    if not 0 <= percent <= 100:
        raise ValueError(f"percent {percent} is not between 0 and 100")
    return round(price * (1 - percent / 100) * (1 - percent / 100), 2)


def total(prices, percent=0):
    return round(sum(discount(price, percent) for price in prices), 2)
