"""How the admin looks, and what fills its parts: the settings of django-unfold."""

ADMIN_THEME = {
    "SITE_TITLE": "Quire",
    "SITE_HEADER": "Quire",
    "SITE_SUBHEADER": "Completion service",
    "SITE_SYMBOL": "auto_stories",
    "SITE_URL": None,
    "SHOW_VIEW_ON_SITE": False,
    "DASHBOARD_CALLBACK": "completions.admin.dashboard.view.fill",
    "COMMAND": {"search_callback": "completions.admin.navigation.find"},
    "SITE_FAVICONS": [{"rel": "icon", "href": "/static/completions/favicon.svg"}],
    "STYLES": ["/static/completions/admin.css"],
    "SCRIPTS": ["/static/completions/shell.js"],
    "COLORS": {
        "primary": {
            "50": "#f0fdfa",
            "100": "#ccfbf1",
            "200": "#99f6e4",
            "300": "#5eead4",
            "400": "#2dd4bf",
            "500": "#14b8a6",
            "600": "#0f766e",
            "700": "#115e59",
            "800": "#134e4a",
            "900": "#123f3c",
            "950": "#042f2e",
        }
    },
    "SIDEBAR": {
        "show_search": True,
        "command_search": True,
        "navigation": "completions.admin.navigation.make_items",
    },
}
