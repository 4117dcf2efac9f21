# The application around the page's middleware: a limiter that refuses the first request to a path, and views that count.
import os
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["ibid_outcome_django.IbidOutcome", "__main__.limiter"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this run",
)
executed = 0
refused = set()


def limiter(get_response):
    def answer(request):
        if not request.path.startswith("/limited") or request.path in refused:
            return get_response(request)
        refused.add(request.path)
        return HttpResponse("too busy", status=503)

    return answer


def work(status):
    def view(request):
        global executed
        executed += 1
        return HttpResponse("worked", status=status)

    return view


urlpatterns = [
    path("limited", work(201)),
    path("fails", work(503)),
    path("executed", lambda request: HttpResponse(str(executed))),
]
make_server("127.0.0.1", int(os.environ["PORT"]), get_wsgi_application()).serve_forever()
