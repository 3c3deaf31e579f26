"""Django's settings, made from `playground.config.Settings`, which stands here as BATCHSCOPE."""

import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from django.utils.translation import gettext_lazy as _

from playground.access.first_start import FirstStartError, data_folder, secret_key
from playground.config import LOOPBACK_HOSTS, PROJECT_FOLDER, SettingsError, load_settings
from playground.database import database_from_url, sqlite_database
from playground.logs import configure_logs, logging_settings

try:
    BATCHSCOPE = load_settings()
    DATA_DIR = data_folder(BATCHSCOPE.data_dir)
    SECRET_KEY = BATCHSCOPE.secret_key or secret_key(DATA_DIR)
except (SettingsError, FirstStartError) as error:
    sys.exit(f"batchscope: {error}")

DEBUG = BATCHSCOPE.debug
_own_hosts = () if BATCHSCOPE.host in ("0.0.0.0", "::") else (BATCHSCOPE.host,)
_origin_hosts = (urlsplit(origin).hostname for origin in BATCHSCOPE.origins)
ALLOWED_HOSTS = list(dict.fromkeys((*LOOPBACK_HOSTS, *_own_hosts, *BATCHSCOPE.allowed_hosts, *_origin_hosts)))

INSTALLED_APPS = [
    "playground",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "csp",
    "ninja",  # for its static files: Swagger UI
]
MIDDLEWARE = [
    "playground.http.openai.door.ProgramDoor",
    "django.middleware.security.SecurityMiddleware",
    "playground.http.middleware.response_headers",
    "playground.http.static.StaticFiles",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "playground.http.middleware.LoginRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "playground.urls"
ASGI_APPLICATION = "playground.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [PROJECT_FOLDER / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {
    "default": database_from_url(BATCHSCOPE.database_url)
    if BATCHSCOPE.database_url
    else sqlite_database(DATA_DIR / "batchscope.sqlite3")
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "chat"
LOGOUT_REDIRECT_URL = "login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# Cookies travel over TLS only where every way in is TLS; a laptop without it must work too.
_tls_only = bool(BATCHSCOPE.origins) and all(origin.startswith("https://") for origin in BATCHSCOPE.origins)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = _tls_only
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = LANGUAGE_COOKIE_SAMESITE = "Lax"
CSRF_TRUSTED_ORIGINS = list(BATCHSCOPE.origins)
CSRF_FAILURE_VIEW = "playground.http.errors.csrf_failure"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],  # icons inside style sheets
        "font-src": ["'self'"],
        "connect-src": ["'self'"],  # sockets of the same host too
        "manifest-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}
BODY_LIMIT = 1 << 20  # bytes of an HTTP body; playground.http.body refuses more before Django reads it
DATA_UPLOAD_MAX_MEMORY_SIZE = BODY_LIMIT

USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [PROJECT_FOLDER / "locale"]
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600
USE_TZ = True
TIME_ZONE = "UTC"

# Collected files (`manage.py collectstatic`) get names by content and live for ever in caches. Without collecting, the
# bundle is served from where esbuild put it.
STATIC_URL = "/static/"
STATIC_ROOT = PROJECT_FOLDER / "staticfiles"
STATICFILES_DIRS = [("dist", path)] if (path := PROJECT_FOLDER / "static" / "dist").is_dir() else []
if viewer := find_spec("asyncapi_viewer"):  # found, not imported: it is a plug-in of a site generator
    STATICFILES_DIRS.append(("asyncapi", Path(str(viewer.origin)).parent / "static"))
_collected = (STATIC_ROOT / "staticfiles.json").is_file()
WHITENOISE_USE_FINDERS = not _collected
WHITENOISE_AUTOREFRESH = DEBUG
WHITENOISE_MAX_AGE = 60 if _collected else 0  # seconds; 0: asked for again each time, and mostly answered with 304
WHITENOISE_ALLOW_ALL_ORIGINS = False
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if _collected
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

LOGGING_CONFIG = None
configure_logs(logging_settings(BATCHSCOPE.log_level, BATCHSCOPE.log_format))
