"""The admin: Django's own, extended to look into requests. Here its parts are registered; each knows its own tables."""

from django.contrib import admin

from playground.admin import accounts as accounts
from playground.admin import conversations as conversations
from playground.admin import keys as keys
from playground.admin import quotas as quotas
from playground.admin import readings as readings
from playground.admin import requests as requests

admin.site.site_header = admin.site.site_title = "Batchscope"
