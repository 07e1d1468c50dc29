"""The test client for URLs that the site does not have."""

from __future__ import annotations

import pytest
from django.conf import settings as of_django
from django.http import HttpRequest, HttpResponse
from django.urls import path
from pytest_django import Settings

from limits_app.testing import SiteClient

pytestmark = pytest.mark.django_db


def named(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{request.get_host()} {of_django.SITE_NAME}")


def test_it_answers_by_its_own_urls_and_settings(settings: Settings) -> None:
    settings.ROOT_URLCONF, settings.ALLOWED_HOSTS, settings.SITE_NAME = (), [], "the site"
    urls = [path("a/", named)]
    client = SiteClient(urls, settings={"SITE_NAME": "the page"}, headers={"host": "example.com"})
    assert client.get("/a/").content == b"example.com the page"
    assert client.get("/b/").status_code == 404
    assert settings.SITE_NAME == "the site"


def test_urls_that_are_added_later_are_answered(settings: Settings) -> None:
    settings.SITE_NAME = "the site"
    urls = [path("a/", named)]
    client = SiteClient(urls)
    urls.append(path("b/", named))
    assert client.get("/b/").content == b"testserver the site"
