"""`hotlap serve`: the history in a browser, in the look of the report page. It computes nothing itself.

`app.py` has the addresses, `gate.py` who may ask, `views.py` what each page shows, `templates/` how. Every page is made
whole by the server from its address alone, so an address can be kept and sent. Questions to the database are bounded.
"""
