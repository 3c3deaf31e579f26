"""Every HTTP address. A view is closed to strangers unless it is marked `login_not_required`."""

from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.urls import path
from django.views.i18n import set_language

from playground.http import api, control, docs, health, iterations, metrics, pages
from playground.http.openai.api import api as openai_api
from playground.http.openai.document import document as openai_document

urlpatterns = [
    path("", pages.chat, name="chat"),
    path("scheduler/", pages.scheduler, name="scheduler"),
    path("scheduler/iterations/", iterations.iterations, name="iterations"),
    path("scheduler/blocks/", iterations.blocks, name="blocks"),
    path("scheduler/export/", iterations.export, name="export"),
    path("scheduler/control/", control.control, name="control"),
    path("scheduler/demo/", control.send_demo, name="demo"),
    path("login/", pages.Login.as_view(), name="login"),
    path("login/<str:token>/", pages.login_link, name="login-link"),
    path("logout/", pages.Logout.as_view(), name="logout"),
    path("language/", login_not_required(set_language), name="set_language"),
    path("api/conversations/", api.Conversations.as_view(), name="conversations"),
    path("api/conversations/<uuid:conversation_id>/", api.OneConversation.as_view(), name="conversation"),
    path("v1/openapi.json", openai_document, name="openapi"),
    path("v1/", openai_api.urls),
    path("docs/", docs.index, name="docs"),
    path("docs/api/", docs.api, name="docs-api"),
    path("docs/websocket/", docs.websocket, name="docs-websocket"),
    path("asyncapi.json", docs.asyncapi, name="asyncapi"),
    path("metrics", metrics.metrics, name="metrics"),
    path("health", health.health, name="health"),
    path("health/live", health.live, name="health-live"),
    path("health/ready", health.ready, name="health-ready"),
    path("admin/login/", pages.admin_login, name="admin-login"),
    path("admin/r/<path:row>", admin.site.admin_view(pages.no_page_of_a_row)),
    path("admin/", admin.site.urls),
]
handler400 = "playground.http.errors.bad_request"
handler403 = "playground.http.errors.forbidden"
handler404 = "playground.http.errors.not_found"
handler500 = "playground.http.errors.server_error"
