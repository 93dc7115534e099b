#!/bin/sh
set -e
. /etc/kubernetes/env
exec nice -n -5 /opt/bin/kube-proxy --proxy_mode=ipvs --cluster-cidr="$CIDR"
