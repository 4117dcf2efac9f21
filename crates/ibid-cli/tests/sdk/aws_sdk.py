"""boto3: the client token is `clientToken` in ECS's JSON body, and `ClientToken` in EC2's form. boto3 makes it.

Each request has another signature, so a header names the tenant.
"""

import sys

import boto3
from calls import serve


def client(service):
    made = boto3.client(
        service,
        endpoint_url=sys.argv[1],
        region_name="eu-central-1",
        aws_access_key_id="ibid",
        aws_secret_access_key="ibid",
    )
    made.meta.events.register("before-sign.*.*", lambda request, **_: name_tenant(request))
    return made


def name_tenant(request):
    request.headers["x-tenant-id"] = "acme"


def run_task(ecs):
    return ecs.run_task(taskDefinition="ibid")["tasks"][0]["taskArn"]


def run_instances(ec2):
    answer = ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1)
    return answer["Instances"][0]["InstanceId"]


service, run = {"ecs": ("ecs", run_task), "ec2": ("ec2", run_instances)}[sys.argv[2]]
made = client(service)
serve(lambda number: run(made))
