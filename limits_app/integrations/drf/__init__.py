"""Django REST framework: throttles that administrators control, and their place in an OpenAPI schema."""
