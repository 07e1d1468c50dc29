"""Tests as the authors of a project write them: without the plugin, the mixin and the functions of the app."""

from urllib.error import HTTPError
from urllib.request import urlopen

from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase, override_settings

from limits_app import CallLimit, limits
from limits_app.models import Endpoint


class Asking:
    """Sends requests of one address."""

    def statuses(self, page: str, number: int) -> list[int]:
        return [self.client.get(f"/{page}/", REMOTE_ADDR="198.51.100.9").status_code for _ in range(number)]


class LimitInCodeTests(Asking, TestCase):
    def test_first(self) -> None:
        self.assertEqual(self.statuses("orders", 4), [200, 200, 200, 429])

    def test_second(self) -> None:
        self.test_first()

    @override_settings(EMAIL_BACKEND="django.core.mail.backends.dummy.EmailBackend", ALLOWED_HOSTS=["testserver"])
    def test_with_other_settings(self) -> None:
        self.test_first()


class RuleTests(Asking, TestCase):
    def test_of_a_rule(self) -> None:
        Endpoint.objects.create(name="about", path="/about/", counted_by="ip", limits="2/h:sliding_window")
        self.assertEqual(self.statuses("about", 3), [200, 200, 429])

    def test_without_a_rule(self) -> None:
        self.assertEqual(self.statuses("about", 5), [200] * 5)


class RuleOfAClassTests(Asking, TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        Endpoint.objects.create(name="about", path="/about/", counted_by="ip", limits="1/h:sliding_window")

    def test_first(self) -> None:
        self.assertEqual(self.statuses("about", 2), [200, 429])

    def test_second(self) -> None:
        self.test_first()


class CommittedRuleTests(Asking, TransactionTestCase):
    def test_of_a_rule(self) -> None:
        Endpoint.objects.create(name="about", path="/about/", counted_by="ip", limits="2/h:sliding_window")
        limits.set_resource_limits("orders", [CallLimit.per_hour(1, algorithm="sliding_window")])
        self.assertEqual(self.statuses("about", 3), [200, 200, 429])
        self.assertEqual(self.statuses("orders", 2), [200, 429])

    def test_without_a_rule(self) -> None:
        self.assertEqual(self.statuses("about", 5), [200] * 5)
        self.assertEqual(self.statuses("orders", 4), [200, 200, 200, 429])


class QueryTests(Asking, TestCase):
    def test_a_page_without_limits_costs_no_query(self) -> None:
        with self.assertNumQueries(0):
            self.assertEqual(self.statuses("about", 2), [200] * 2)

    def test_a_page_with_a_limit_in_code_costs_no_query(self) -> None:
        with self.assertNumQueries(0):
            self.assertEqual(self.statuses("orders", 4), [200, 200, 200, 429])


class NoDatabaseTests(Asking, SimpleTestCase):
    def test_pages(self) -> None:
        self.assertEqual(self.statuses("about", 2), [200] * 2)

    def test_limit_in_code(self) -> None:
        self.assertEqual(self.statuses("orders", 4), [200, 200, 200, 429])


class LiveServerTests(LiveServerTestCase):
    def test_threads_share_the_limit(self) -> None:
        answers = []
        for _ in range(5):
            try:
                with urlopen(f"{self.live_server_url}/orders/") as response:
                    answers.append(response.status)
            except HTTPError as error:
                answers.append(error.code)
        self.assertEqual(answers, [200, 200, 200, 429, 429])
