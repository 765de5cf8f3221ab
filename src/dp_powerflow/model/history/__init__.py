"""A private model of whole histories: customers who persist, and days that follow one another.

The load of customer i on day d at step t is level_i · g_i(z), with

    z = m_i(t) + off(d)·c(t) + s_i·[w_i·f(d, t) + a_i·√v(t)·η_i(d, t)]

m_i: the customer's own mean day. c: contrast of days off. f: a factor that all customers share, such as the
weather. η_i: one stationary process over all days. g_i: a map from normal scores to load, bounded, with the
customer's own base and peak.

- `numbers`: numerical pieces. `Ladder`: η as a sum of moving averages of white noise, each slower than
  the one before.
- `contributions`: what one customer adds to each query; PRIVATE.
- `estimate`: the list of queries, what follows from their answers, and the law of every class.
- `law`: what is released of a class, and customers drawn from it.
- `sample`: the days of the customers, summed per load.
"""
