"""Sign-in and logout, under `/admin/`. Two of these paths replace Django's own."""

from django.urls import path

from completions.sign_in import views

app_name = "sign_in"
urlpatterns = [
    path("login/", views.login),
    path("logout/", views.logout),
    path("oidc/start/", views.start, name="start"),
    path("oidc/callback/", views.callback, name="callback"),
]
