"""The web pages below `/ui/`: views (typed records), templates, and the application that serves them.

Pages know the cluster only through its HTTP API: they call the API of their own process, with the credentials of the person who
looks at the page. So pages have no access rules of their own.
"""
