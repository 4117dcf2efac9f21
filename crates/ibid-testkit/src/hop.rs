//! Real proxies between a gateway and an upstream: nginx, HAProxy, Envoy, Apache, Caddy, Varnish.
//!
//! Each runs in the foreground with a configuration as an operator would write it. It knows nothing of ibid except
//! the lines that an operator adds for a preset; `docs/concepts/outcomes.md` shows the same lines.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use ibid_core::proof::{HopPreset, PRESETS};

use crate::program::{Launch, Program, tools};

/// A supported proxy program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// The proxy server nginx.
    Nginx,
    /// The load balancer HAProxy.
    Haproxy,
    /// The proxy server Envoy.
    Envoy,
    /// The web server Apache with `mod_proxy_http`.
    Apache,
    /// Caddy, which represents Go's `httputil.ReverseProxy`.
    Caddy,
    /// The HTTP cache Varnish.
    Varnish,
}

impl Proxy {
    /// All the supported proxies.
    pub const ALL: [Proxy; 6] =
        [Proxy::Nginx, Proxy::Haproxy, Proxy::Envoy, Proxy::Apache, Proxy::Caddy, Proxy::Varnish];

    /// Proxies that can tell their own errors from the upstream's, and so have a preset with rules.
    pub const WITH_PRESET: [Proxy; 4] = [Proxy::Nginx, Proxy::Haproxy, Proxy::Envoy, Proxy::Apache];

    /// Returns its name, as `behind = "…"` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Proxy::Nginx => "nginx",
            Proxy::Haproxy => "haproxy",
            Proxy::Envoy => "envoy",
            Proxy::Apache => "apache",
            Proxy::Caddy => "caddy",
            Proxy::Varnish => "varnish",
        }
    }

    /// Returns a value of `X-Ibid-ProxyHop` that proves that nothing was sent; empty if there is no preset.
    pub fn proof(self) -> &'static str {
        let rule = self.preset().and_then(|preset| preset.rules.first());
        rule.map_or("", |rule| rule.values[0])
    }

    /// Returns the lines that an operator adds to the proxy's configuration for `behind`; empty if there are none.
    pub fn operator_lines(self) -> &'static str {
        self.preset().map_or("", |preset| preset.lines)
    }

    fn preset(self) -> Option<&'static HopPreset> {
        PRESETS.iter().find(|preset| preset.name == self.name())
    }
}

/// Options of a proxy; the default is the plainest configuration, with a time-out of a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProxyHopOptions {
    /// Includes the operator's lines in the configuration.
    pub proves: bool,
    /// Sends one request at a time to the upstream, refuses others, and waits longer for the upstream.
    pub one_at_a_time: bool,
    /// Retries a failed try: nginx at another address, HAProxy and Envoy at the same.
    pub tries_again: Option<SocketAddr>,
}

/// A running proxy; ended when dropped.
#[derive(Debug)]
pub struct ProxyHop(Program);

impl ProxyHop {
    /// Starts a proxy in front of `upstream` and waits until it takes connections.
    ///
    /// # Panics
    ///
    /// If the proxy is not installed or does not start.
    pub fn start(proxy: Proxy, upstream: SocketAddr, options: ProxyHopOptions) -> ProxyHop {
        ProxyHop(Program::start(|folder, port| {
            let config = Config { folder, port, upstream, options };
            match proxy {
                Proxy::Nginx => config.nginx(),
                Proxy::Haproxy => config.haproxy(),
                Proxy::Envoy => config.envoy(),
                Proxy::Apache => config.apache(),
                Proxy::Caddy => config.caddy(),
                Proxy::Varnish => config.varnish(),
            }
        }))
    }

    /// Returns the address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr()
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Returns its output on stdout and stderr.
    pub fn output(&self) -> String {
        self.0.output()
    }
}

/// Values that a configuration is built from.
struct Config<'a> {
    folder: &'a Path,
    port: u16,
    upstream: SocketAddr,
    options: ProxyHopOptions,
}

impl Config<'_> {
    fn nginx(&self) -> Launch {
        let Config { folder, port, upstream, .. } = self;
        let folder = folder.display();
        let limit = if self.options.one_at_a_time { "limit_conn all 1;" } else { "" };
        let (again, next) = match self.options.tries_again {
            Some(other) => (
                format!("server {other} max_fails=0;"),
                "proxy_next_upstream error timeout http_503 non_idempotent;",
            ),
            None => (String::new(), ""),
        };
        let text = format!(
            "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{
              access_log off;
              client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
              fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
              limit_conn_zone $server_port zone=all:1m;
              upstream app {{ server {upstream} max_fails=0; {again} keepalive 8; }}
              server {{
                listen 127.0.0.1:{port};
                proxy_http_version 1.1;
                proxy_set_header Connection \"\";
                proxy_read_timeout {wait}s;
                {lines}
                location / {{ {limit} {next} proxy_pass http://app; }}
              }}
            }}\n",
            wait = self.wait(),
            lines = self.lines(Proxy::Nginx),
        );
        Launch::new("nginx", ["-c".into(), self.file("nginx.conf", &text), "-e".into(), "stderr".into()])
    }

    fn haproxy(&self) -> Launch {
        let Config { port, upstream, .. } = self;
        let limit = if self.options.one_at_a_time { "maxconn 1" } else { "" };
        let retries = if self.options.tries_again.is_some() { "  retries 2" } else { "" };
        let text = format!(
            "defaults\n  mode http\n  timeout connect 1s\n  timeout client 60s\n  timeout server {wait}s\n  \
             timeout queue 300ms\nfrontend in\n  bind 127.0.0.1:{port}\n  default_backend app\n\
             backend app\n  http-reuse always\n  {lines}\n{retries}\n  server app {upstream} {limit}\n",
            wait = self.wait(),
            lines = self.lines(Proxy::Haproxy).replace('\n', "\n  "),
        );
        Launch::new("haproxy", ["-db".into(), "-f".into(), self.file("haproxy.cfg", &text)])
    }

    fn envoy(&self) -> Launch {
        let Config { port, upstream, .. } = self;
        let limit = match self.options.one_at_a_time {
            true => "circuit_breakers: { thresholds: [ { max_requests: 1 } ] }",
            false => "connect_timeout: 1s",
        };
        let again = match self.options.tries_again {
            Some(_) => ", retry_policy: { retry_on: connect-failure, num_retries: 1 }",
            None => "",
        };
        let text = format!(
            "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: app
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            {lines}
            virtual_hosts:
            - name: app
              domains: [\"*\"]
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: app, timeout: {wait}s{again} }}
  clusters:
  - name: app
    type: STATIC
    {limit}
    load_assignment:
      cluster_name: app
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {to} }} }} }}
",
            wait = self.wait(),
            lines = self.lines(Proxy::Envoy).replace('\n', "\n            "),
            host = upstream.ip(),
            to = upstream.port(),
        );
        let file = self.file("envoy.yaml", &text);
        let args = ["-c".into(), file, "--concurrency".into(), "1".into(), "--disable-hot-restart".into()];
        Launch::new(tools().join(ENVOY), args).env("ENVOY_UID", "0")
    }

    fn apache(&self) -> Launch {
        let Config { folder, port, upstream, .. } = self;
        let folder = folder.display();
        let limit = if self.options.one_at_a_time { "max=1 acquire=300" } else { "" };
        let modules: String = APACHE_MODULES
            .iter()
            .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
            .collect();
        let text = format!(
            "ServerName localhost\nServerRoot {folder}\nDefaultRuntimeDir {folder}\nPidFile {folder}/pid\n\
             ErrorLog /dev/stderr\nMutex file:{folder}\nListen 127.0.0.1:{port}\n{modules}\
             ProxyTimeout {wait}\n{lines}\nProxyPass / http://{upstream}/ retry=0 {limit}\n",
            wait = self.wait(),
            lines = self.lines(Proxy::Apache),
        );
        Launch::new("apache2", ["-X".into(), "-f".into(), self.file("apache.conf", &text)])
    }

    fn caddy(&self) -> Launch {
        let Config { folder, port, upstream, .. } = self;
        let text = format!(
            "{{\n\tadmin off\n\tauto_https off\n}}\nhttp://:{port} {{\n\tbind 127.0.0.1\n\treverse_proxy {upstream} {{\n\
             \t\ttransport http {{\n\t\t\tresponse_header_timeout {wait}s\n\t\t}}\n\t}}\n}}\n",
            wait = self.wait(),
        );
        let file = self.file("Caddyfile", &text);
        let args = ["run".into(), "--config".into(), file, "--adapter".into(), "caddyfile".into()];
        Launch::new("caddy", args)
            .env("HOME", *folder)
            .env("XDG_DATA_HOME", *folder)
            .env("XDG_CONFIG_HOME", *folder)
    }

    fn varnish(&self) -> Launch {
        let Config { folder, port, upstream, .. } = self;
        let limit = if self.options.one_at_a_time { ".max_connections = 1;" } else { "" };
        let text = format!(
            "vcl 4.1;\nbackend app {{ .host = \"{host}\"; .port = \"{to}\"; .first_byte_timeout = {wait}s; {limit} }}\n",
            host = upstream.ip(),
            to = upstream.port(),
            wait = self.wait(),
        );
        let work = folder.join("work").into_os_string();
        let listen = format!("127.0.0.1:{port}").into();
        let file = self.file("app.vcl", &text);
        let (cache, jail) = ("malloc,8m".into(), "none".into());
        Launch::new(
            "varnishd",
            [
                "-j".into(),
                jail,
                "-F".into(),
                "-n".into(),
                work,
                "-a".into(),
                listen,
                "-s".into(),
                cache,
                "-f".into(),
                file,
            ],
        )
    }

    /// Writes a configuration file and returns its path.
    fn file(&self, name: &str, text: &str) -> std::ffi::OsString {
        let file = self.folder.join(name);
        fs::write(&file, text).expect("a file in our own folder");
        file.into_os_string()
    }

    fn lines(&self, proxy: Proxy) -> &'static str {
        if self.options.proves { proxy.operator_lines() } else { "" }
    }

    /// Returns the seconds it waits for a response. A request that keeps others out has to outlast the test.
    fn wait(&self) -> u32 {
        if self.options.one_at_a_time { 60 } else { 1 }
    }
}

const APACHE_MODULES: [&str; 5] = ["mpm_event", "authz_core", "headers", "proxy", "proxy_http"];

/// Path of Envoy below the directory that `scripts/setup` installs to.
const ENVOY: &str = "envoy-1.40.0/envoy/_bin/envoy";
