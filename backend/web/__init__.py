"""The page that comes with Talekeeper: plain HTML, CSS and ES modules, and the routes to them."""
