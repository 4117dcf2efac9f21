# Django on gunicorn: the handler runs longer than the worker's --timeout, and gunicorn kills the worker.
import os
import time

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="only for this run")


def pay(request):
    with open(os.environ["EXECUTED"], "a") as file:
        file.write("x")
    time.sleep(4)
    return HttpResponse(status=201)


urlpatterns = [path("payments", pay)]
application = get_wsgi_application()
