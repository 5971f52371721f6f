"""What tests share: tiny models, made-up tables, a project in a folder."""
