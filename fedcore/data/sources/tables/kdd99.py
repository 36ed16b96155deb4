"""Network connections with simulated attacks: 494,021 records, 41 attributes, 23 types.

Source: KDD Cup 1999 (UCI, CC BY 4.0), the published tenth. The paper specifies neither the encoding of text nor the
label. Our choices: a feature of 0 or 1 for each protocol, service and flag of the full data, and all 23 types as
classes. Counters of rare events (failed logins, files made) become logarithms without scaling to deviation 1, since
nearly all connections have 0 there.
"""

from __future__ import annotations

from fedcore.data.schema import Column
from fedcore.data.sources.tables.description import Description, FileLayout, counts, flag, standardised

_TEXTS = {
    "protocol_type": ("icmp", "tcp", "udp"),
    "service": (
        "IRC",
        "X11",
        "Z39_50",
        "aol",
        "auth",
        "bgp",
        "courier",
        "csnet_ns",
        "ctf",
        "daytime",
        "discard",
        "domain",
        "domain_u",
        "echo",
        "eco_i",
        "ecr_i",
        "efs",
        "exec",
        "finger",
        "ftp",
        "ftp_data",
        "gopher",
        "harvest",
        "hostnames",
        "http",
        "http_2784",
        "http_443",
        "http_8001",
        "imap4",
        "iso_tsap",
        "klogin",
        "kshell",
        "ldap",
        "link",
        "login",
        "mtp",
        "name",
        "netbios_dgm",
        "netbios_ns",
        "netbios_ssn",
        "netstat",
        "nnsp",
        "nntp",
        "ntp_u",
        "other",
        "pm_dump",
        "pop_2",
        "pop_3",
        "printer",
        "private",
        "red_i",
        "remote_job",
        "rje",
        "shell",
        "smtp",
        "sql_net",
        "ssh",
        "sunrpc",
        "supdup",
        "systat",
        "telnet",
        "tftp_u",
        "tim_i",
        "time",
        "urh_i",
        "urp_i",
        "uucp",
        "uucp_path",
        "vmnet",
        "whois",
    ),
    "flag": ("OTH", "REJ", "RSTO", "RSTOS0", "RSTR", "S0", "S1", "S2", "S3", "SF", "SH"),
}
_TYPES = (
    "back.",
    "buffer_overflow.",
    "ftp_write.",
    "guess_passwd.",
    "imap.",
    "ipsweep.",
    "land.",
    "loadmodule.",
    "multihop.",
    "neptune.",
    "nmap.",
    "normal.",
    "perl.",
    "phf.",
    "pod.",
    "portsweep.",
    "rootkit.",
    "satan.",
    "smurf.",
    "spy.",
    "teardrop.",
    "warezclient.",
    "warezmaster.",
)


def _text(name: str) -> Column:
    return Column(name=name, categories=tuple(range(len(_TEXTS[name]))), other=False)


def _rare(name: str) -> Column:
    """A counter of rare events: log2(value + 1)."""
    return counts(name, 0, 2, 5)


_SCHEMA = (
    counts("duration", 0, 3, 10),
    _text("protocol_type"),
    _text("service"),
    _text("flag"),
    counts("src_bytes", 150, 20, 5),
    counts("dst_bytes", 2, 15, 5),
    flag("land"),
    _rare("wrong_fragment"),
    _rare("urgent"),
    _rare("hot"),
    _rare("num_failed_logins"),
    *standardised({"logged_in": (0.15, 0.35, 3)}),
    _rare("num_compromised"),
    flag("root_shell"),
    _rare("su_attempted"),
    _rare("num_root"),
    _rare("num_file_creations"),
    _rare("num_shells"),
    _rare("num_access_files"),
    _rare("num_outbound_cmds"),
    flag("is_host_login"),
    flag("is_guest_login"),
    *standardised(
        {
            "count": (330, 210, 3),
            "srv_count": (290, 250, 3),
            "serror_rate": (0.2, 0.4, 3),
            "srv_serror_rate": (0.2, 0.4, 3),
            "rerror_rate": (0.06, 0.25, 4),
            "srv_rerror_rate": (0.06, 0.25, 4),
            "same_srv_rate": (0.8, 0.4, 3),
            "diff_srv_rate": (0.02, 0.1, 5),
            "srv_diff_host_rate": (0.03, 0.15, 5),
            "dst_host_count": (230, 65, 4),
            "dst_host_srv_count": (190, 105, 3),
            "dst_host_same_srv_rate": (0.75, 0.4, 3),
            "dst_host_diff_srv_rate": (0.03, 0.1, 5),
            "dst_host_same_src_port_rate": (0.6, 0.5, 3),
            "dst_host_srv_diff_host_rate": (0.01, 0.05, 5),
            "dst_host_serror_rate": (0.2, 0.4, 3),
            "dst_host_srv_serror_rate": (0.2, 0.4, 3),
            "dst_host_rerror_rate": (0.06, 0.25, 4),
            "dst_host_srv_rerror_rate": (0.06, 0.25, 4),
        }
    ),
)

KDD99 = Description(
    label="type",
    schema=_SCHEMA,
    classes=_TYPES,
    texts=_TEXTS,
    layouts=(FileLayout(patterns=("kddcup.data_10_percent",), columns=(*(column.name for column in _SCHEMA), "type")),),
)
