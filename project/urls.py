"""The URL table: the admin, the API and its probes."""

from django.contrib import admin
from django.urls import include, path

from completions.console.landing import show_landing

admin.autodiscover()

urlpatterns = [
    path("", include("completions.urls")),  # first, because Django tries them in turn
    path("", show_landing),
    path("admin/", include("completions.sign_in.urls")),  # replaces two pages of the admin
    path("admin/", include("completions.admin.urls")),
    path("admin/", include("completions.console.urls")),
    path("admin/", admin.site.urls),
]

handler400 = "completions.http.error_handlers.handle_bad_request"
handler404 = "completions.http.error_handlers.handle_not_found"
handler500 = "completions.http.error_handlers.handle_server_error"
